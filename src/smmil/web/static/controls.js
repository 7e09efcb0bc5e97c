// Controls of how maps are shown, the same in the report and the viewer.
import { field, fillSelect } from "./dom_helpers.js";

/** Fill the controls and call back: `change` with settings, `slide` with the share of the threshold's slider. */
export function wireControls({ models, palettes, change, slide, useThreshold, zoom, whole }) {
  const names = models.map((model, i) => [String(i), model.name]);
  fillSelect(field("left-model"), names, "0");
  fillSelect(field("right-model"), [["", "nothing"], ...names], "");
  field("compare").hidden = names.length < 2;
  for (const select of document.querySelectorAll("select.palette")) {
    fillSelect(select, palettes.map((name) => [name, name]), palettes[0]);
    select.addEventListener("change", () => change({ palette: select.value }));
  }
  const on = (id, event, action) => field(id).addEventListener(event, (e) => action(e.target));
  on("left-model", "change", (e) => change({ left: Number(e.value) }));
  on("right-model", "change", (e) => change({ right: e.value === "" ? null : Number(e.value) }));
  on("scale", "change", (e) => change({ scale: e.value }));
  on("opacity", "input", (e) => change({ opacity: e.value / 100 }));
  on("threshold", "input", (e) => slide(e.value / 1000));
  on("use-threshold", "click", useThreshold);
  on("heat", "change", (e) => change({ heat: e.checked }));
  on("truth", "change", (e) => change({ truth: e.checked }));
  on("between", "change", (e) => change({ between: e.checked }));
  on("zoom-in", "click", () => zoom(1.5));
  on("zoom-out", "click", () => zoom(1 / 1.5));
  on("whole", "click", whole);
  field("controls").addEventListener("submit", (event) => event.preventDefault());
}

/** Let the controls show the settings. */
export function showControls(settings) {
  field("left-model").value = String(settings.left);
  field("right-model").value = settings.right === null ? "" : String(settings.right);
  for (const id of ["left-model", "right-model"]) field(id).title = field(id).selectedOptions[0]?.textContent ?? ""; // a box cuts long names
  for (const select of document.querySelectorAll("select.palette")) select.value = settings.palette;
  field("scale").value = settings.scale;
  field("opacity").value = Math.round(settings.opacity * 100);
  field("opacity-value").textContent = `${Math.round(settings.opacity * 100)} %`;
  field("heat").checked = settings.heat;
  field("truth").checked = settings.truth;
  field("between").checked = settings.between;
}
