// How maps are shown: one set of settings for all panes.
import { showControls, wireControls } from "./controls.js";
import { drawPanes, showPanes, wholeAll, zoomAll } from "./report_case.js";
import { DATA, PALETTES } from "./report_data.js";
import { repaintRows } from "./report_table.js";
import { field, following } from "./dom_helpers.js";

export const settings = {
  palette: "viridis", opacity: 0.65, threshold: 0, exact: false, heat: true, truth: true, scale: "case",
  left: 0, right: null,
};

const calibrated = DATA.models.some((model) => model.calibrated);

/** A model's own threshold. Scores on the page are rounded; a calibrated one is lowered by as much, so that whatever is
 * flagged is shown. */
function ownThreshold(model, cells) {
  const rounding = (0.501 * (cells.high - cells.low)) / (2 ** cells.bits - 1);
  return model.calibrated ? model.threshold - rounding : model.threshold;
}

/** Settings in the terms of one pane: colours, limits and a threshold in the model's own scores. */
export function howFor(pane) {
  const model = DATA.models[pane.model];
  const common = settings.scale === "all";
  const [low, high] = common ? model.range : [pane.cells.low, pane.cells.high];
  const slid = settings.threshold === 0 ? -Infinity : low + settings.threshold * (high - low) - 1e-9 * (high - low);
  return {
    ...settings,
    palette: PALETTES[settings.palette],
    limits: common ? model.colours : pane.cells.colours,
    threshold: settings.exact && model.threshold !== null ? ownThreshold(model, pane.cells) : slid,
  };
}

export function prepareControls() {
  field("use-threshold").hidden = DATA.models.every((model) => model.threshold === null);
  wireControls({
    models: DATA.models, palettes: Object.keys(PALETTES), change, zoom: zoomAll, whole: wholeAll,
    slide: (share) => change({ threshold: share, exact: false }), useThreshold: () => change({ exact: true }),
  });
  if (calibrated) change({ exact: true });
}

export function change(some) {
  Object.assign(settings, some);
  showControls(settings);
  field("threshold-value").textContent =
    settings.exact ? (calibrated ? "calibrated" : "from validation") : settings.threshold === 0 ? "off" : `${(settings.threshold * 100).toFixed(1)} %`;
  if ("palette" in some) repaintRows();
  if ("left" in some || "right" in some) drawPanes();
  else showPanes();
}

export function nextPalette() {
  change({ palette: following(Object.keys(PALETTES), settings.palette) });
}
