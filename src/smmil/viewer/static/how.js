// The reader's choices in the terms of one model: colours, ends of the scale, a threshold in the model's own scores.
import { facts } from "./facts.js";
import { state } from "./state.js";
import { shortNumber } from "./words.js";

export function givenThreshold(model) {
  return facts.models[model]?.threshold ?? facts.threshold ?? null;
}

export function howFor(model, scores) {
  const known = facts.models[model];
  const common = state.scale === "all" && known.range;
  const [low, high] = common ? known.range : [scores.low, scores.high];
  const slid = state.cut === 0 ? -Infinity : low + state.cut * (high - low) - 1e-9 * (high - low);
  const given = givenThreshold(model);
  return {
    palette: facts.palettes[state.palette],
    limits: common && known.colours ? known.colours : scores.colours,
    threshold: state.exact && given !== null ? given : slid,
    opacity: state.opacity,
    heat: state.heat,
    truth: state.truth,
  };
}

export function colourOf(score, how) {
  const at = colourIndex(score, how.limits) * 3; // colourIndex: paint.js, shared with the report
  return `rgb(${how.palette[at]},${how.palette[at + 1]},${how.palette[at + 2]})`;
}

/** How many instances reach the threshold, in words; nothing without one. */
export function aboveWords(values, threshold) {
  if (!Number.isFinite(threshold)) return "";
  const count = values.reduce((sum, score) => sum + (score >= threshold), 0);
  return `≥ ${shortNumber(threshold)}: ${count} of ${values.length}`;
}
