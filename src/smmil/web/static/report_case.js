// One case, large: one or two panes and the keys to move around.
import { makeLegend, paintLegend } from "./paint.js";
import { change, howFor, nextLayer, nextPalette, settings } from "./report_controls.js";
import { DATA, cellsOf, layerOf } from "./report_data.js";
import { PointsPane, SlidePane, isFlat } from "./report_slide.js";
import { StripPane } from "./report_strip.js";
import { body, caseRows, table } from "./report_table.js";
import { aboveText, field, make, moveFocus, showAlarm } from "./dom_helpers.js";
import { linkPanes } from "./zoom_pane.js";

export const dialog = field("case");
export const shown = { number: null, panes: [], turn: 0 };

export function openCase(number) {
  shown.number = number;
  const entry = DATA.cases[number];
  if (entry.verdicts[settings.left] === null) settings.left = entry.verdicts.findIndex((verdict) => verdict !== null);
  field("case-title").textContent = entry.id;
  const place = table.order.indexOf(number);
  field("previous").disabled = place <= 0;
  field("next").disabled = place < 0 || place >= table.order.length - 1;
  if (!dialog.open) dialog.showModal();
  const focused = document.activeElement; // a button that has just been switched off would take the keys with it
  if (!dialog.contains(focused) || focused.disabled) field("close").focus();
  return drawPanes();
}

function caseText(entry) {
  const label = entry.truth !== undefined ? `truth: ${entry.truth || "unknown"}` : entry.y === null ? "label unknown" : `label ${entry.y}`;
  const models = [settings.left, settings.right].filter((m) => m !== null && entry.verdicts[m] !== null);
  const verdicts = models.map((m) => {
    const whole = entry.patient ? [`patient of ${entry.patient.id}: ${verdictText(m, entry.patient.verdicts[m])}`] : [];
    const own = verdictText(m, entry.verdicts[m]);
    return `${DATA.models[m].name}: ${[own && entry.patient ? `this case ${own}` : own, ...whole].filter(Boolean).join("; ")}`;
  });
  return [label, ...verdicts].join("  ·  ");
}

/** What a model said, and whether it was right; nothing where it said nothing about the case by itself. */
function verdictText(model, { p, answer, outcome, words }) {
  if (words !== undefined) return words;
  const chance = DATA.models[model].classes > 2 ? `class ${answer} with ${p.toFixed(3)}` : `P(positive) ${p.toFixed(3)}`;
  return `${chance}, ${outcome}`;
}

/** What the calibration of a model says about the case, in words. */
function saidOf(model, said, several) {
  return said ? make("span", "", several ? `${DATA.models[model].name}: ${said} ` : said) : null;
}

/** Build the panes after a choice of case or models. A later call overtakes an earlier one. */
export async function drawPanes() {
  if (shown.number === null) return;
  const turn = ++shown.turn;
  const entry = DATA.cases[shown.number];
  const models = [settings.left, settings.right].filter((m, i) => m !== null && (i === 0 || m !== settings.left));
  const present = models.filter((m) => entry.verdicts[m] !== null);
  const loaded = await Promise.all(present.map((m) => cellsOf(shown.number, m, settings.layer)));
  if (turn !== shown.turn) return;
  closePanes();
  field("case-facts").textContent = caseText(entry);
  field("case-said").replaceChildren(...present.map((m) => saidOf(m, entry.verdicts[m].said, present.length > 1)).filter(Boolean));
  showAlarm([...new Set(entry.verdicts.map((verdict) => verdict?.alarm ?? verdict?.withdrawn).filter(Boolean))]);
  const hosts = present.map(hostOf); // all of them first, so that every pane opens at its final size
  field("panes").classList.toggle("stacked", loaded.some((cells) => !isFlat(cells)));
  shown.panes = present.map((m, i) => paneOf(hosts[i], m, loaded[i]));
  if (shown.panes.length === 2 && shown.panes.every((p) => p instanceof SlidePane)) linkPanes(shown.panes);
  drawNotes(entry, models);
  change({});
  await Promise.all(shown.panes.map((pane) => pane.ready));
  if (turn !== shown.turn) return;
  showPanes();
  dialog.dataset.ready = `${shown.number}:${present.join(",")}`;
}

/** Another layer in the same panes, which keep their place and zoom. */
export async function drawLayer() {
  if (shown.number === null) return;
  if (!dialog.dataset.ready) return drawPanes();
  const turn = ++shown.turn;
  const loaded = await Promise.all(shown.panes.map((pane) => cellsOf(shown.number, pane.model, settings.layer)));
  if (turn !== shown.turn) return;
  shown.panes.forEach((pane, i) => pane.use(loaded[i]));
  drawNotes(DATA.cases[shown.number], shown.panes.map((pane) => pane.model));
  showPanes();
}

function hostOf(model) {
  const host = make("section", "pane");
  const head = make("header");
  const legend = makeLegend();
  legend.append(make("span", "above"));
  head.append(make("h3", "", DATA.models[model].name), make("span", "score-kind"), legend);
  host.append(head, make("p", "layer-verdict"));
  field("panes").append(host);
  return host;
}

function paneOf(host, model, cells) {
  const kinds = { map: SlidePane, points: PointsPane };
  return new (kinds[cells.kind] || StripPane)(host, shown.number, model, cells);
}

function drawNotes(entry, models) {
  const missing = models.filter((m) => entry.verdicts[m] === null).map((m) => `${DATA.models[m].name} has no prediction of this case`);
  const picture = [...(entry.missing ? [`no picture: ${entry.missing}`] : []), ...(entry.damage ? [entry.damage] : [])];
  const held = shown.panes.filter((pane) => pane.cells.layer !== settings.layer).map((pane) =>
    `${DATA.models[pane.model].name} holds no ${layerOf(settings.layer).title} of this case: its scores are shown`);
  const notes = [...picture, ...entry.notes, ...held, ...shown.panes.flatMap((pane) => pane.cells.notes)];
  const truth = shown.panes.some((pane) => pane.cells.truth) ? [] : ["no instance label is known: no outline"];
  field("case-notes").replaceChildren(...[...new Set([...missing, ...notes, ...truth])].map((n) => make("li", "", n)));
}

/** What the numbers of a pane are. */
function kindText(pane) {
  const layer = layerOf(pane.cells.layer);
  if (layer.name === "score") return DATA.models[pane.model].kind;
  return layer.title === layer.kind ? layer.title : `${layer.title}: ${layer.kind}`;
}

/** What the uncertainty is worth, measured on the cases of this report; in bold when it should not be read. The line keeps its
 * place below other layers, or the map would move when the layer changes. */
function showVerdict(pane) {
  const [place, { layer }] = [pane.host.querySelector(".layer-verdict"), pane.cells];
  const { verdict } = DATA.models[pane.model].layers[layer];
  place.hidden = DATA.layers.every(({ name }) => name !== "uncertainty");
  place.style.visibility = layer === "uncertainty" ? "visible" : "hidden";
  place.textContent = verdict ? `In all cases here, ${layer} ${verdict}.` : "What it is worth was not measured: that needs labelled instances and a threshold.";
  place.classList.toggle("warning", verdict.includes("do not"));
}

export function showPanes() {
  field("between").closest("label").hidden = !shown.panes.some((pane) => pane.cellWidth?.()); // strips and dots have no cells to go between
  for (const pane of shown.panes) {
    const how = howFor(pane);
    pane.show(how);
    pane.host.querySelector(".score-kind").textContent = kindText(pane);
    showVerdict(pane);
    paintLegend(pane.host.querySelector(".colour-legend"), how, pane.cellWidth?.());
    pane.host.querySelector(".above").textContent = aboveText(how.threshold, pane.shown, (pane.cells.volume ?? pane.cells).cells);
  }
}

function closePanes() {
  delete dialog.dataset.ready;
  for (const pane of shown.panes) pane.close();
  shown.panes = [];
  field("panes").replaceChildren();
}

export function step(by) {
  const next = table.order[table.order.indexOf(shown.number) + by];
  if (next !== undefined) openCase(next);
}

export function closed() {
  const row = [...body.rows].find((r) => Number(r.dataset.case) === shown.number);
  shown.turn++;
  closePanes();
  shown.number = null;
  if (row) moveFocus(caseRows(), row, 0);
}

export function caseKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  const actions = {
    n: () => step(1), p: () => step(-1), h: () => change({ heat: !settings.heat }),
    t: () => change({ truth: !settings.truth }), c: nextPalette, l: nextLayer, i: () => change({ between: !settings.between }),
    "+": () => zoomAll(1.5), "=": () => zoomAll(1.5), "-": () => zoomAll(1 / 1.5), 0: wholeAll,
  };
  if (!event.target.matches("input, .strip canvas, .openseadragon-canvas")) shown.panes[0]?.keys?.(event); // nothing has been chosen yet
  if (!(event.key in actions)) return;
  actions[event.key]();
  event.preventDefault();
  event.stopPropagation(); // OpenSeadragon has keys of its own
}

export function zoomAll(factor) {
  const leader = shown.panes.find((pane) => pane.leads);
  if (leader) leader.zoom(factor);
  else shown.panes.forEach((pane) => pane.zoom(factor));
}

export function wholeAll() {
  const leader = shown.panes.find((pane) => pane.leads);
  for (const pane of leader ? [leader] : shown.panes) pane.whole();
}
