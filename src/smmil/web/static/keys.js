// Keys that work everywhere on the page; the same as in the report where both have them.
import { step } from "./list.js";
import { mark } from "./marks.js";
import { jump } from "./panel.js";
import { paneKeys, whole, zoomBy } from "./case_panes.js";
import { change, state } from "./state.js";
import { nextModel, nextPalette, nextWindow, swapModels } from "./tools.js";
import { field } from "./dom_helpers.js";

const ACTIONS = {
  n: () => step(1), p: () => step(-1),
  h: () => change({ heat: !state.heat }), t: () => change({ truth: !state.truth }), c: nextPalette,
  l: () => mark(1), o: () => mark(0),
  i: () => change({ between: !state.between }), v: () => change({ planes: !state.planes }),
  m: nextModel, x: swapModels, w: nextWindow,
  "+": () => zoomBy(1.5), "=": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5), 0: whole,
  "/": () => field("search").focus(), "?": () => field("keys").showModal(),
  Escape: () => state.opened?.info.kind !== "scan" && change({ patch: null }),
};
for (let i = 1; i <= 9; i++) ACTIONS[i] = () => jump(i - 1);

const PAUSE = 1000; // ms: how long a choice list goes on collecting letters
let lettered = -Infinity;

/** A choice list takes letters that begin one of its words, and those that follow at once. */
function isChoosing(event) {
  if (!event.target.matches("select") || event.key.length > 1) return false;
  const begins = [...event.target.options].some((option) => option.text.toLowerCase().startsWith(event.key.toLowerCase()));
  const choosing = begins || event.timeStamp - lettered < PAUSE;
  if (choosing) lettered = event.timeStamp;
  return choosing;
}

/** Keys typed into a field belong to it; so do those of an open dialog. */
function isTyping(event) {
  return event.target.matches("input:not([type=range]):not([type=checkbox]), textarea") || isChoosing(event) || field("keys").open;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
  if (event.target === document.body || event.target === field("stage")) paneKeys(event); // nothing has been clicked yet
  if (!Object.hasOwn(ACTIONS, event.key)) return;
  ACTIONS[event.key]();
  if (event.key === "Escape" && event.target.matches("select")) return; // it also closes an open list
  event.preventDefault();
  event.stopPropagation(); // OpenSeadragon has keys of its own
}

export function prepareKeys() {
  document.addEventListener("keydown", pressed, true);
  field("show-keys").addEventListener("click", () => field("keys").showModal());
}
