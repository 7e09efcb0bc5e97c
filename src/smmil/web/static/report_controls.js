// How maps are shown: one set of settings for all panes.
import { showControls, wireControls } from "./controls.js";
import { drawLayer, drawPanes, showPanes, wholeAll, zoomAll } from "./report_case.js";
import { DATA, PALETTES, layerOf } from "./report_data.js";
import { repaintRows } from "./report_table.js";
import { field, fillSelect, following } from "./dom_helpers.js";

export const settings = {
  palette: "viridis", opacity: 0.65, threshold: 0, exact: false, heat: true, truth: true, scale: "all", between: false,
  layer: "score", left: 0, right: null,
};

const calibrated = DATA.models.some((model) => model.calibrated);

/** A model's own threshold. Scores on the page are rounded; a calibrated one is lowered by as much, so that whatever is
 * flagged is shown. */
function ownThreshold(model, cells) {
  const rounding = (0.501 * (cells.high - cells.low)) / (2 ** cells.bits - 1);
  return model.calibrated ? model.threshold - rounding : model.threshold;
}

/** Settings in the terms of one pane: colours, limits with their words, and a threshold in the model's own scores; only
 * scores have one that was chosen elsewhere. */
export function howFor(pane) {
  const model = DATA.models[pane.model];
  const common = settings.scale === "all";
  const { layer } = pane.cells;
  const all = model.layers[layer];
  const exact = settings.exact && model.threshold !== null && layer === "score";
  const [low, high] = common ? all.range : [pane.cells.low, pane.cells.high];
  const slid = settings.threshold === 0 ? -Infinity : low + settings.threshold * (high - low) - 1e-9 * (high - low);
  return {
    ...settings,
    palette: PALETTES[settings.palette],
    limits: common ? all.colours : pane.cells.colours,
    ends: [layerOf(layer).low, layerOf(layer).high],
    threshold: exact ? ownThreshold(model, pane.cells) : slid,
  };
}

export function prepareControls() {
  wireControls({
    models: DATA.models, palettes: Object.keys(PALETTES), change, zoom: zoomAll, whole: wholeAll,
    slide: (share) => change({ threshold: share, exact: false }), useThreshold: () => change({ exact: true }),
  });
  for (const select of layerChoices()) {
    fillSelect(select, DATA.layers.map((layer) => [layer.name, layer.title]), settings.layer);
    select.closest("label").hidden = DATA.layers.length < 2;
    select.addEventListener("change", () => change({ layer: select.value }));
  }
  change({ exact: calibrated });
}

function layerChoices() {
  return document.querySelectorAll("select.layer");
}

export function change(some) {
  Object.assign(settings, some);
  showControls(settings);
  for (const select of layerChoices()) select.value = settings.layer;
  const exact = settings.exact && settings.layer === "score";
  field("use-threshold").hidden = settings.layer !== "score" || DATA.models.every((model) => model.threshold === null);
  field("threshold-value").textContent =
    exact ? (calibrated ? "calibrated" : "from validation") : settings.threshold === 0 ? "off" : `${(settings.threshold * 100).toFixed(1)} %`;
  if ("palette" in some || "layer" in some || "scale" in some) repaintRows();
  if ("left" in some || "right" in some) drawPanes();
  else if ("layer" in some) drawLayer();
  else showPanes();
}

export function nextLayer() {
  change({ layer: following(DATA.layers.map((layer) => layer.name), settings.layer) });
}

export function nextPalette() {
  change({ palette: following(Object.keys(PALETTES), settings.palette) });
}
