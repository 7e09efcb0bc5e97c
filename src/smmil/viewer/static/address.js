// The address says what is shown, so that a link brings another reader to the same place.
import { facts } from "./facts.js";
import { goToView } from "./stage.js";
import { change, onChange, state } from "./state.js";

const KEPT = ["case", "left", "right", "view", "patch", "slice", "window", "cut", "exact", "palette", "opacity"];
const WAIT = 150;
let waiting = 0;
let written = null; // the case of the address as it stands

function textOf() {
  const said = new URLSearchParams();
  const put = (key, value) => value !== null && value !== undefined && said.set(key, value);
  put("case", facts.cases[state.case]?.id);
  put("model", facts.models[state.left]?.name);
  put("beside", facts.models[state.right]?.name);
  for (const key of ["view", "patch", "slice", "window"]) put(key, state[key]);
  if (state.exact || state.cut) said.set("threshold", state.exact ? "given" : state.cut);
  if (state.palette !== "viridis") said.set("colours", state.palette);
  if (state.opacity !== 0.65) said.set("opacity", state.opacity);
  return `#${said}`;
}

function write() {
  const text = textOf();
  if (text === location.hash) return;
  const another = written !== null && written !== state.case;
  written = state.case;
  // another case is a step back can undo; moving around in one is not. A token in the address has done its work.
  history[another ? "pushState" : "replaceState"](null, "", location.pathname + text);
}

/** Numbers are read as numbers, names are looked up; whatever does not fit is passed over. */
function read() {
  const said = new URLSearchParams(location.hash.slice(1));
  const number = (key, most) => {
    const value = Number(said.get(key));
    return said.has(key) && Number.isInteger(value) && value >= 0 && value < most ? value : null;
  };
  const named = (key) => facts.models.findIndex((model) => model.name === said.get(key));
  const at = facts.cases.findIndex((entry) => entry.id === said.get("case"));
  const share = (key) => Math.max(0, Math.min(1, Number(said.get(key)) || 0));
  return {
    case: at < 0 ? null : at, left: Math.max(0, named("model")), right: named("beside") < 0 ? null : named("beside"),
    view: said.get("view"), patch: number("patch", facts.cases[at]?.instances ?? 0), slice: number("slice", 1e5), window: said.get("window"),
    exact: said.get("threshold") === "given", cut: share("threshold"),
    palette: Object.hasOwn(facts.palettes, said.get("colours") ?? "") ? said.get("colours") : "viridis",
    opacity: said.has("opacity") ? share("opacity") : 0.65,
  };
}

/** Take the address over; without a case in it, `first` is opened. */
export function followAddress(first) {
  const wanted = read();
  const same = wanted.case === state.case;
  change({ ...wanted, case: wanted.case ?? first() });
  written = state.case;
  if (same && wanted.view) goToView(wanted.view);
}

export function prepareAddress(first) {
  onChange(KEPT, () => {
    clearTimeout(waiting);
    waiting = setTimeout(write, WAIT);
  });
  window.addEventListener("popstate", () => followAddress(first));
  followAddress(first);
}
