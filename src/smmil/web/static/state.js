// What the reader has chosen. Parts of the page listen to changes and draw themselves.
export const state = {
  case: null, left: 0, right: null, layers: {}, patch: null, slice: null, view: null, window: null,
  opened: null, models: [], refreshed: 0, marked: 0,
  palette: "viridis", opacity: 0.65, cut: null, cutOf: 0, heat: true, truth: true, scale: "case", between: false, planes: false,
};
const listeners = [];

/** Call `action` after a change of any of these keys. */
export function onChange(keys, action) {
  listeners.push({ keys: new Set(keys), action });
}

/** Take over some choices and call the listeners they concern. */
export function change(some) {
  const changed = Object.keys(some).filter((key) => state[key] !== some[key]);
  Object.assign(state, some);
  for (const { keys, action } of listeners) if (changed.some((key) => keys.has(key))) action(changed);
}

export const SHOWING = ["palette", "opacity", "cut", "cutOf", "heat", "truth", "scale", "between", "planes"];
