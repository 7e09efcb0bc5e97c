// The tools above the map: they show the reader's choices and change them.
import { showControls, wireControls } from "./controls.js";
import { facts } from "./facts.js";
import { givenThreshold, reachOf, scoreAt, thresholdFor } from "./display_settings.js";
import { whole, zoomBy } from "./case_panes.js";
import { SHOWING, change, onChange, state } from "./state.js";
import { field, fillSelect, following, shortNumber } from "./dom_helpers.js";

export function prepareControls() {
  wireControls({
    models: facts.models, palettes: Object.keys(facts.palettes), change, zoom: zoomBy, whole, slide: slideThreshold,
    useThreshold: () => change({ cut: givenThreshold(cutModel()), cutOf: cutModel() }),
  });
  field("swap").hidden = facts.models.length < 2;
  field("swap").addEventListener("click", swapModels);
  field("window").addEventListener("change", (event) => event.target.value && change({ window: event.target.value }));
  field("planes").addEventListener("change", (event) => change({ planes: event.target.checked }));
  for (const id of ["window-centre", "window-width"]) field(id).addEventListener("input", typedWindow);
  onChange([...SHOWING, "left", "right", "opened", "models", "window"], draw);
  draw();
}

function draw() {
  showControls(state);
  field("swap").disabled = state.right === null;
  field("between").closest("label").hidden = state.opened?.info.kind !== "slide"; // scans and points have no cells to go between
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

/** The model in whose scores the threshold is shown and set. */
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
  field("planes").checked = state.planes;
  if (!scan) return;
  const names = Object.entries(scan.windows);
  const chosen = Object.hasOwn(scan.windows, state.window ?? "") ? state.window : state.window === null ? names[0][0] : "";
  fillSelect(field("window"), [...names.map(([name]) => [name, name.replaceAll("_", " ")]), ["", "own"]], chosen);
  if (chosen === "") return;
  const digits = scan.windows[chosen][1] < 20 ? 4 : 0;
  for (const id of ["window-centre", "window-width"]) field(id).step = digits ? "any" : 5;
  [field("window-centre").value, field("window-width").value] = scan.windows[chosen].map((value) => Number(value.toFixed(digits)));
}

function typedWindow() {
  const [centre, width] = ["window-centre", "window-width"].map((id) => Number(field(id).value));
  if (Number.isFinite(centre) && width > 0) change({ window: `${centre}/${width}` });
}

export function nextWindow() {
  const names = Object.keys(state.opened?.info.scan?.windows ?? {});
  if (names.length) change({ window: following(names, state.window ?? names[0]) });
}

export function nextPalette() {
  change({ palette: following(Object.keys(facts.palettes), state.palette) });
}

export function nextModel() {
  change({ left: (state.left + 1) % facts.models.length });
}

export function swapModels() {
  if (state.right !== null) change({ left: state.right, right: state.left });
}
