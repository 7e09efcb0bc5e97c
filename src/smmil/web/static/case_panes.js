// The middle of the page: the panes of the opened case.
import { openedCase, presentModels, scoresOf } from "./facts.js";
import { MapPane } from "./map_pane.js";
import { RowPane } from "./row_pane.js";
import { ScanPane } from "./scan_pane.js";
import { clearProblem, report } from "./server.js";
import { SHOWING, change, onChange, state } from "./state.js";
import { field, make } from "./dom_helpers.js";
import { linkPanes } from "./zoom_pane.js";

const shown = { number: null, panes: [], models: [], opened: null, extras: [], turn: 0 };

/** Build or change the panes after another choice of case or models. A later call overtakes an earlier one. */
async function draw() {
  const turn = ++shown.turn;
  const number = state.case;
  delete field("stage").dataset.ready;
  if (shown.number !== null && shown.number !== number) closePanes(); // no map of one case under the name of another
  if (state.opened && state.opened.number !== number) change({ opened: null, models: [] });
  if (number === null) return field("stage").removeAttribute("aria-busy");
  field("stage").setAttribute("aria-busy", "true");
  try {
    const loaded = await load(number);
    if (turn === shown.turn) await present(number, turn, loaded);
  } catch (problem) {
    if (turn !== shown.turn) return;
    closePanes();
    change({ opened: null, models: [] });
    field("stage").append(make("p", "empty", "This case cannot be shown now."));
    report(problem, draw);
  } finally {
    if (turn === shown.turn) field("stage").removeAttribute("aria-busy");
  }
}

async function load(number) {
  const opened = await openedCase(number);
  const models = presentModels(opened, [state.left, state.right]);
  const more = Object.keys(state.layers).map(Number).filter((m) => opened.info.models[m]?.present && !models.includes(m));
  const [scores, extraScores] = await Promise.all([models, more].map((list) => Promise.all(list.map((m) => scoresOf(opened, m)))));
  return { opened, models, scores, extras: more.map((m, i) => [m, extraScores[i]]) };
}

async function present(number, turn, { opened, models, scores, extras }) {
  clearProblem();
  const flat = opened.info.kind === "scan" || opened.info.kind === "none";
  if (number !== shown.number || models.length !== shown.models.length || flat) build(number, opened, models);
  Object.assign(shown, { models, extras });
  if (flat) shown.panes[0].setModels([...models.map((m, i) => [m, scores[i]]), ...extras]);
  else shown.panes.forEach((pane, i) => pane.setModel(models[i], scores[i]));
  await Promise.all(shown.panes.map((pane) => pane.ready));
  if (turn !== shown.turn) return;
  if (shown.fresh && !flat) shown.panes.forEach((pane) => pane.setView(state.view));
  shown.fresh = false;
  showPanes();
  change({ opened, models: [...models] });
  field("stage").dataset.ready = `${number}:${models.join(",")}`;
}

function build(number, opened, models) {
  if (shown.number === number) change({ view: leader().view?.() ?? null }); // the same case in other panes: stay there
  closePanes();
  Object.assign(shown, { number, opened, fresh: true });
  const Kind = { scan: ScanPane, none: RowPane }[opened.info.kind];
  const hosts = (Kind ? [null] : models).map(() => make("section", "pane"));
  field("stage").append(...hosts); // all of them first, so that every pane opens at its final size
  shown.panes = hosts.map((host) => new (Kind ?? MapPane)(host, opened));
  if (shown.panes.length > 1) linkPanes(shown.panes);
}

function closePanes() {
  for (const pane of shown.panes) pane.close();
  Object.assign(shown, { panes: [], models: [], number: null });
  field("stage").replaceChildren();
}

function showPanes() {
  if (!shown.opened || shown.number !== state.case) return;
  const extras = shown.extras.filter(([m]) => state.layers[m]).map(([m, scores]) => [m, scores, state.layers[m]]);
  for (const pane of shown.panes) pane.show(extras);
}

function leader() {
  return shown.panes.find((pane) => pane.leads) ?? shown.panes[0];
}

export function zoomBy(factor) {
  leader()?.zoom(factor);
}

/** Arrows and their kin for the pane, while no element of the page has the focus. */
export function paneKeys(event) {
  leader()?.keys?.(event);
}

export function whole() {
  leader()?.whole();
}

/** Look at an instance: bring it into sight and open it in the inspector. */
export function goTo(instance) {
  leader()?.goTo(instance);
  change({ patch: instance });
}

export function goToView(view) {
  if (shown.number === state.case) leader()?.setView?.(view, false);
}

export function redraw() {
  showPanes();
}

onChange(["case", "left", "right", "layers"], draw);
onChange([...SHOWING, "patch", "slice", "window"], showPanes);
