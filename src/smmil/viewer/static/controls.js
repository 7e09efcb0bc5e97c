// The tools above the map: they show the reader's choices and change them.
import { facts } from "./facts.js";
import { givenThreshold, reachOf, scoreAt, thresholdFor } from "./how.js";
import { whole, zoomBy } from "./stage.js";
import { SHOWING, change, onChange, state } from "./state.js";
import { field, fillSelect, shortNumber } from "./words.js";

export function prepareControls() {
  const names = facts.models.map((model, i) => [String(i), model.name]);
  fillSelect(field("left-model"), names, String(state.left));
  fillSelect(field("right-model"), [["", "nothing"], ...names], "");
  fillSelect(field("palette"), Object.keys(facts.palettes).map((name) => [name, name]), state.palette);
  field("compare").hidden = field("swap").hidden = names.length < 2;
  listen();
  onChange([...SHOWING, "left", "right", "opened", "models", "window"], draw);
  draw();
}

function listen() {
  const on = (id, event, action) => field(id).addEventListener(event, (e) => action(e.target));
  on("left-model", "change", (e) => change({ left: Number(e.value) }));
  on("right-model", "change", (e) => change({ right: e.value === "" ? null : Number(e.value) }));
  on("swap", "click", swapModels);
  on("palette", "change", (e) => change({ palette: e.value }));
  on("scale", "change", (e) => change({ scale: e.value }));
  on("opacity", "input", (e) => change({ opacity: e.value / 100 }));
  on("threshold", "input", (e) => slideThreshold(Number(e.value) / 1000));
  on("use-threshold", "click", () => change({ cut: givenThreshold(cutModel()), cutOf: cutModel() }));
  on("heat", "change", (e) => change({ heat: e.checked }));
  on("truth", "change", (e) => change({ truth: e.checked }));
  on("zoom-in", "click", () => zoomBy(1.5));
  on("zoom-out", "click", () => zoomBy(1 / 1.5));
  on("whole", "click", whole);
  on("window", "change", (e) => e.value && change({ window: e.value }));
  for (const id of ["window-centre", "window-width"]) on(id, "input", typedWindow);
  field("controls").addEventListener("submit", (event) => event.preventDefault());
}

function draw() {
  field("left-model").value = String(state.left);
  field("right-model").value = state.right === null ? "" : String(state.right);
  field("swap").disabled = state.right === null;
  field("palette").value = state.palette;
  field("scale").value = state.scale;
  field("opacity").value = Math.round(state.opacity * 100);
  field("opacity-value").textContent = `${Math.round(state.opacity * 100)} %`;
  field("heat").checked = state.heat;
  field("truth").checked = state.truth;
  drawThreshold();
  drawWindow();
}

function drawThreshold() {
  const given = givenThreshold(state.left);
  field("use-threshold").hidden = given === null;
  field("use-threshold").textContent = `Use ${shortNumber(given)}`;
  field("use-threshold").setAttribute("aria-pressed", state.cut !== null && state.cut === given);
  const cut = currentThreshold();
  field("threshold-value").textContent = cut === null ? "off" : `≥ ${shortNumber(cut)}`;
  field("threshold").value = cut === null ? 0 : placeOf(cut);
}

/** The model in whose scores the threshold is told and set. */
function cutModel() {
  return state.models[0] ?? state.left;
}

function slideThreshold(share) {
  const scores = state.opened?.scores.get(cutModel());
  if (scores) change({ cut: share === 0 ? null : scoreAt(reachOf(cutModel(), scores), share), cutOf: cutModel() });
}

/** Where the slider stands for a threshold in scores. */
function placeOf(cut) {
  const scores = state.opened?.scores.get(cutModel());
  if (!scores) return 0;
  const [low, high] = reachOf(cutModel(), scores);
  if (high === low) return cut > low ? 1000 : 0;
  return Math.max(0, Math.min(1000, Math.round(((cut - low) / (high - low)) * 1000)));
}

/** The threshold of the first model shown, in its own scores; nothing when there is none. */
export function currentThreshold() {
  return thresholdFor(cutModel());
}

function drawWindow() {
  const scan = state.opened?.info.scan;
  field("scan-tools").hidden = !scan;
  if (!scan) return;
  const names = Object.entries(scan.windows);
  const chosen = Object.hasOwn(scan.windows, state.window ?? "") ? state.window : state.window === null ? names[0][0] : "";
  fillSelect(field("window"), [...names.map(([name]) => [name, name.replaceAll("_", " ")]), ["", "own"]], chosen);
  if (chosen === "") return;
  [field("window-centre").value, field("window-width").value] = scan.windows[chosen];
}

function typedWindow() {
  const [centre, width] = ["window-centre", "window-width"].map((id) => Number(field(id).value));
  if (Number.isFinite(centre) && width > 0) change({ window: `${centre}/${width}` });
}

export function nextWindow() {
  const names = Object.keys(state.opened?.info.scan?.windows ?? {});
  if (names.length) change({ window: names[(names.indexOf(state.window ?? names[0]) + 1) % names.length] });
}

export function nextPalette() {
  const names = Object.keys(facts.palettes);
  change({ palette: names[(names.indexOf(state.palette) + 1) % names.length] });
}

export function nextModel() {
  change({ left: (state.left + 1) % facts.models.length });
}

export function swapModels() {
  if (state.right !== null) change({ left: state.right, right: state.left });
}
