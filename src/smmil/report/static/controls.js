// How maps are shown: one set of settings for all panes.
const settings = {
  palette: "viridis", opacity: 0.65, threshold: 0, exact: false, heat: true, truth: true, scale: "case",
  left: 0, right: null,
};
const field = (id) => document.getElementById(id);

/** Settings in the terms of one pane: colours, limits and a threshold in the model's own scores. */
function howFor(pane) {
  const model = DATA.models[pane.model];
  const common = settings.scale === "all";
  const [low, high] = common ? model.range : [pane.cells.low, pane.cells.high];
  const slid = settings.threshold === 0 ? -Infinity : low + settings.threshold * (high - low) - 1e-9 * (high - low);
  return {
    ...settings,
    palette: PALETTES[settings.palette],
    limits: common ? model.colours : pane.cells.colours,
    threshold: settings.exact && model.threshold !== null ? model.threshold : slid,
  };
}

function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => {
    const option = make("option", "", words);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

function prepareControls() {
  const names = DATA.models.map((model, i) => [String(i), model.name]);
  fillSelect(field("left-model"), names, "0");
  fillSelect(field("right-model"), [["", "nothing"], ...names], "");
  field("compare").hidden = names.length < 2;
  field("use-threshold").hidden = DATA.models.every((model) => model.threshold === null);
  for (const select of document.querySelectorAll("select.palette")) {
    fillSelect(select, Object.keys(PALETTES).map((name) => [name, name]), settings.palette);
    select.addEventListener("change", () => choosePalette(select.value));
  }
  listenToControls();
}

function listenToControls() {
  field("left-model").addEventListener("change", (e) => chooseModels(Number(e.target.value), settings.right));
  field("right-model").addEventListener("change", (e) =>
    chooseModels(settings.left, e.target.value === "" ? null : Number(e.target.value)));
  field("heat").addEventListener("change", (e) => change({ heat: e.target.checked }));
  field("truth").addEventListener("change", (e) => change({ truth: e.target.checked }));
  field("opacity").addEventListener("input", (e) => change({ opacity: e.target.value / 100 }));
  field("threshold").addEventListener("input", (e) => change({ threshold: e.target.value / 1000, exact: false }));
  field("use-threshold").addEventListener("click", () => change({ exact: true }));
  field("scale").addEventListener("change", (e) => change({ scale: e.target.value }));
  field("controls").addEventListener("submit", (e) => e.preventDefault());
}

function change(some) {
  Object.assign(settings, some);
  field("heat").checked = settings.heat;
  field("truth").checked = settings.truth;
  field("opacity-value").textContent = `${Math.round(settings.opacity * 100)} %`;
  field("threshold-value").textContent =
    settings.exact ? "from validation" : settings.threshold === 0 ? "off" : `${(settings.threshold * 100).toFixed(1)} %`;
  showPanes();
}

function choosePalette(name) {
  for (const select of document.querySelectorAll("select.palette")) select.value = name;
  change({ palette: name });
  seen.disconnect();
  for (const row of body.rows) seen.observe(row);
}

function nextPalette() {
  const names = Object.keys(PALETTES);
  choosePalette(names[(names.indexOf(settings.palette) + 1) % names.length]);
}

function chooseModels(left, right) {
  Object.assign(settings, { left, right });
  field("left-model").value = String(left);
  field("right-model").value = right === null ? "" : String(right);
  drawPanes();
}
