// The right side around the inspector: highest scores, further layers, downloads, notes; and the head of the case.
import { highest } from "./cells.js";
import { facts, refusalOf } from "./facts.js";
import { announce } from "./messages.js";
import { askFile, report } from "./server.js";
import { goTo } from "./case_panes.js";
import { SHOWING, change, onChange, state } from "./state.js";
import { labelWords } from "./list.js";
import { currentThreshold } from "./tools.js";
import { field, fillSelect, make, makeButton, shortNumber, showAlarm } from "./dom_helpers.js";

const JUMPS = 9;
let hottest = [];

export function preparePanel() {
  onChange(["case", "opened", "models"], drawPanel);
  onChange(["case", "left", "right", "opened", "models"], drawHead);
  onChange(["layers", "left", "right"], drawLayers);
  onChange([...SHOWING, "opened", "models"], drawDownloadWords);
  onChange(["patch", "opened", "models"], pressRank);
  onChange(["refreshed"], drawNotes);
}

function drawPanel() {
  if (!state.opened) return emptyPanel();
  drawHighest();
  drawLayers();
  drawDownloads();
  drawNotes();
}

/** While a case is loading, or cannot be loaded, nothing of another one is shown under its name. */
function emptyPanel() {
  hottest = [];
  field("highest").replaceChildren();
  for (const id of ["layer-section", "download-section", "note-section"]) field(id).hidden = true;
}

/** What the list knows of the chosen case, whether or not it can be opened. */
function drawHead() {
  const entry = facts.cases[state.case];
  if (!entry) return [field("case-title"), field("case-facts")].forEach((line) => { line.textContent = line.title = ""; });
  field("case-title").textContent = field("case-title").title = entry.id;
  document.title = `${entry.id} · smmil view`;
  const label = labelWords(entry, "label unknown");
  const verdicts = (state.models.length ? state.models : [state.left, state.right]).filter((m) => m !== null && (entry.said?.[m]?.words || entry.probability[m] !== null)).map((m) =>
    `${facts.models[m].name}: ${entry.said?.[m]?.words ?? `P ${entry.probability[m].toFixed(3)}`}${entry.outcome[m] ? `, ${entry.outcome[m]}` : ""}`);
  field("case-facts").textContent = field("case-facts").title = [label, `${entry.instances.toLocaleString("en")} instances`, ...verdicts].join("  ·  ");
}

function drawHighest() {
  const scores = state.opened.scores.get(state.models[0]);
  hottest = highest(scores.values, Math.min(JUMPS, state.opened.info.instances));
  field("highest").replaceChildren(...hottest.map((instance, i) => {
    const button = makeButton(String(i + 1), `Score ${shortNumber(scores.values[instance])} (key ${i + 1})`, () => jump(i));
    button.setAttribute("aria-label", `Go to rank ${i + 1}, score ${shortNumber(scores.values[instance])}`);
    button.dataset.instance = instance;
    return button;
  }));
}

/** The button of the instance that is looked at stays down. */
function pressRank() {
  for (const button of field("highest").children) button.setAttribute("aria-pressed", Number(button.dataset.instance) === state.patch);
}

/** Go to the i-th highest score, counted from 0. */
export function jump(i) {
  if (hottest[i] !== undefined && state.opened?.number === state.case) goTo(hottest[i]);
}

function drawLayers() {
  const others = facts.models.map((_, m) => m).filter((m) => !state.models.includes(m) && state.opened?.info.models[m].present);
  field("layer-section").hidden = !others.length;
  field("layers").replaceChildren(...others.map(layerRow));
}

function layerRow(model) {
  const layer = state.layers[model];
  const row = make("div", "layer-row");
  const label = make("label", "check");
  const box = make("input");
  Object.assign(box, { type: "checkbox", checked: Boolean(layer), id: `layer-${model}` });
  box.addEventListener("change", () => setLayer(model, box.checked ? { as: "line", opacity: 0.9 } : null));
  label.append(box, make("span", `key m${model % 6}`), make("span", "", facts.models[model].name));
  row.append(label);
  if (layer && state.opened.info.kind !== "scan") row.append(kindOf(model, layer), opacityOf(model, layer));
  return row;
}

function kindOf(model, layer) {
  const select = make("select");
  select.setAttribute("aria-label", `How ${facts.models[model].name} is drawn`);
  fillSelect(select, [["line", "lines"], ["heat", "heat map"]], layer.as);
  select.addEventListener("change", () => setLayer(model, { ...layer, as: select.value }));
  return select;
}

function opacityOf(model, layer) {
  const slider = make("input");
  Object.assign(slider, { type: "range", min: 0, max: 100, value: layer.opacity * 100 });
  slider.setAttribute("aria-label", `Opacity of ${facts.models[model].name}`);
  slider.addEventListener("change", () => setLayer(model, { ...layer, opacity: slider.value / 100 }));
  return slider;
}

function setLayer(model, layer) {
  const layers = { ...state.layers };
  if (layer) layers[model] = layer;
  else delete layers[model];
  change({ layers });
  field(`layer-${model}`)?.focus();
}

function drawDownloads() {
  const formats = state.opened.info.exports ?? ["geojson", "csv"];
  field("download-section").hidden = !formats.length;
  field("downloads").replaceChildren(...formats.map((format) => {
    const button = makeButton(format, `${facts.models[state.models[0]].name} as ${format}`, () => download(button, format));
    button.dataset.format = format;
    return button;
  }));
}

function drawDownloadWords() {
  if (!state.opened) return;
  const cut = currentThreshold();
  const words = cut === null ? "No threshold is set: scores without regions." : `Positive from ${shortNumber(cut)} upwards.`;
  field("download-words").textContent = `${facts.models[state.models[0]].name}. ${words} De-identified.`;
  for (const button of field("downloads").children) {
    button.disabled = cut === null && (state.opened.info.exports_need_threshold ?? []).includes(button.dataset.format);
  }
}

async function download(button, format) {
  const [number, model, cut] = [state.opened.number, state.models[0], currentThreshold()];
  button.setAttribute("aria-busy", "true");
  try {
    const file = await askFile(`/export/${number}/${model}/${format}${cut === null ? "" : `?threshold=${cut}`}`, `case-${number}.${format}`);
    const link = make("a");
    Object.assign(link, { href: URL.createObjectURL(file.blob), download: file.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    announce(`${file.name} was written`);
  } catch (problem) {
    report(problem, () => download(button, format));
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function drawNotes() {
  if (!state.opened) return;
  const { info, truth } = state.opened;
  showAlarm(info.alarms ?? []);
  const missing = [state.left, state.right].filter((m) => m !== null && !info.models[m].present)
    .map((m) => `${facts.models[m].name} has no prediction of this case`);
  const why = refusalOf(state.opened);
  const notes = (info.notes ?? []).map((note) => (note === why ? `images were given but refused: ${note}` : note));
  if (why !== null && !info.notes?.includes(why)) notes.unshift("images were given but refused");
  const all = [...missing, ...notes, ...(truth ? [] : ["no instance label is known: no truth is shown"])];
  field("note-section").hidden = !all.length;
  field("case-notes").replaceChildren(...[...new Set(all)].map((note) => make("li", "", note)));
}
