// The URL holds what is shown, so that a link leads another reader to the same place.
import { facts } from "./facts.js";
import { givenThreshold, thresholdFor } from "./display_settings.js";
import { note } from "./messages.js";
import { goToView } from "./case_panes.js";
import { change, onChange, state } from "./state.js";

const LINKED = ["case", "left", "right", "view", "patch", "slice", "window", "cut", "cutOf", "scale", "palette", "opacity", "between", "planes"];
const WAIT = 150;
let waiting = 0;
let written = null; // the case of the address as it stands

function textOf() {
  const params = new URLSearchParams();
  const put = (key, value) => value !== null && value !== undefined && params.set(key, value);
  put("case", facts.cases[state.case]?.id);
  put("model", facts.models[state.left]?.name);
  put("beside", facts.models[state.right]?.name);
  put("view", state.view);
  if (facts.cases[state.case]?.kind !== "scan") put("patch", state.patch); // in a scan the slice says it
  put("slice", state.slice === null ? null : state.slice + 1); // counted from 1, as on the screen
  put("window", state.window);
  put("threshold", thresholdFor(state.left) ?? (givenThreshold(state.left) === null ? null : "off"));
  if (state.scale !== "case") params.set("scale", state.scale);
  if (state.palette !== "viridis") params.set("colours", state.palette);
  if (state.opacity !== 0.65) params.set("opacity", state.opacity);
  for (const key of ["between", "planes"]) if (state[key]) params.set(key, "yes");
  return `#${params}`;
}

function write() {
  if (state.case === null) return; // a link that leads nowhere stays as it was sent
  const text = textOf();
  if (text === location.hash) return;
  const another = written !== null && written !== state.case;
  written = state.case;
  // another case is a step back can undo; moving around in one is not. A token in the address has done its work.
  history[another ? "pushState" : "replaceState"](null, "", location.pathname + text);
}

/** Numbers are read as numbers, names are looked up; `unknown` gathers in words what the address names in vain. */
function read(unknown) {
  const params = new URLSearchParams(location.hash.slice(1));
  const at = find(facts.cases, "id", params.get("case"));
  if (at < 0) unknown.push(`case ${params.get("case")} is not among these predictions: choose one from the list`);
  const model = (key) => {
    const found = find(facts.models, "name", params.get(key));
    if (found < 0) unknown.push(`model ${params.get(key)} is not here`);
    return found;
  };
  const [left, right] = [Math.max(0, model("model") ?? 0), model("beside")];
  const share = (key) => Math.max(0, Math.min(1, Number(params.get(key)) || 0));
  return {
    case: at, left, right: right === undefined || right < 0 ? null : right,
    view: params.get("view"), patch: instanceOf(params, facts.cases[at], unknown), slice: sliceOf(params), window: params.get("window"),
    cut: thresholdOf(params.get("threshold"), left), cutOf: left, scale: params.get("scale") === "all" ? "all" : "case",
    palette: Object.hasOwn(facts.palettes, params.get("colours") ?? "") ? params.get("colours") : "viridis",
    opacity: params.has("opacity") ? share("opacity") : 0.65,
    between: params.get("between") === "yes", planes: params.get("planes") === "yes",
  };
}

/** The number of what has this name; -1 for a name nothing has; nothing without a name. */
function find(table, key, name) {
  return name === null ? undefined : table.findIndex((one) => one[key] === name);
}

function instanceOf(params, entry, unknown) {
  if (!params.has("patch") || !entry || entry.kind === "scan") return null;
  const number = Number(params.get("patch"));
  if (params.get("patch") !== "" && Number.isInteger(number) && number >= 0 && number < entry.instances) return number;
  unknown.push(`instance ${params.get("patch")} is not in ${entry.id}, which has ${entry.instances} (0 to ${entry.instances - 1})`);
  return null;
}

/** Whether the scan has this slice is known when it is opened. */
function sliceOf(params) {
  const number = Number(params.get("slice"));
  return Number.isInteger(number) && number >= 1 ? number - 1 : null;
}

/** A score, "off", or where the page begins when the address is silent. */
function thresholdOf(text, model) {
  const known = text !== null && text.trim() !== "" && Number.isFinite(Number(text));
  return text === "off" ? null : known ? Number(text) : givenThreshold(model);
}

/** Take the address over; without a case in it, `first` is opened; for one that is not here, none. */
export function followAddress(first) {
  const unknown = [];
  const wanted = read(unknown);
  const same = wanted.case === state.case;
  note(unknown.length ? `This link does not fit: ${unknown.join("; ")}.` : "");
  change({ ...wanted, case: wanted.case === undefined ? first() : wanted.case < 0 ? null : wanted.case });
  written = state.case;
  if (same && wanted.view) goToView(wanted.view);
}

export function prepareAddress(first) {
  onChange(LINKED, () => {
    clearTimeout(waiting);
    waiting = setTimeout(write, WAIT);
  });
  window.addEventListener("popstate", () => followAddress(first));
  followAddress(first);
}
