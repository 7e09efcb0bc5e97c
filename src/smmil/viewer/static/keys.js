// Keys that work everywhere on the page; the same as in the report where both have them.
import { nextModel, nextPalette, nextWindow, swapModels } from "./controls.js";
import { step } from "./list.js";
import { jump } from "./panel.js";
import { whole, zoomBy } from "./stage.js";
import { change, state } from "./state.js";
import { field } from "./words.js";

const ACTIONS = {
  n: () => step(1), p: () => step(-1),
  h: () => change({ heat: !state.heat }), t: () => change({ truth: !state.truth }), c: nextPalette,
  m: nextModel, x: swapModels, w: nextWindow,
  "+": () => zoomBy(1.5), "=": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5), 0: whole,
  "/": () => field("search").focus(), "?": () => field("keys").showModal(),
  Escape: () => state.opened?.info.kind !== "scan" && change({ patch: null }),
};
for (let i = 1; i <= 9; i++) ACTIONS[i] = () => jump(i - 1);

/** Keys typed into a field belong to it; so do those of an open dialog. */
function isTyping(event) {
  return event.target.matches("input:not([type=range]):not([type=checkbox]), select, textarea") || field("keys").open;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || !Object.hasOwn(ACTIONS, event.key)) return;
  ACTIONS[event.key]();
  event.preventDefault();
  event.stopPropagation(); // OpenSeadragon has keys of its own
}

export function prepareKeys() {
  document.addEventListener("keydown", pressed, true);
  field("show-keys").addEventListener("click", () => field("keys").showModal());
}
