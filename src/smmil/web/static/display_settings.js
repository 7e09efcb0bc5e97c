// The reader's choices in the terms of one model: colours, ends of the scale, a threshold in the model's own scores.
import { facts } from "./facts.js";
import { state } from "./state.js";
import { aboveText } from "./dom_helpers.js";

/** The layer that is shown of a model; a threshold of scores is about no other. */
const layerOf = (model) => facts.models[model]?.layer ?? "score";

export function givenThreshold(model) {
  if (layerOf(model) !== "score") return null;
  return facts.models[model]?.threshold ?? facts.threshold ?? null;
}

/** The threshold in the scores of one model. It was set in those of `cutOf`; another model with a spread of its own is
 * cut at the same share of its spread over all cases. A given threshold stands for that of each model. */
export function thresholdFor(model) {
  const { cut, cutOf } = state;
  if (cut === null || model === cutOf) return cut;
  if (layerOf(model) !== layerOf(cutOf)) return null;
  if (cut === givenThreshold(cutOf) && givenThreshold(model) !== null) return givenThreshold(model);
  const [from, to] = [cutOf, model].map((m) => facts.models[m]?.range);
  if (!from || !to || from[1] === from[0]) return cut;
  return to[0] + ((cut - from[0]) / (from[1] - from[0])) * (to[1] - to[0]);
}

/** Lowest and highest place of the slider: of this case or of all. */
export function reachOf(model, scores) {
  const known = facts.models[model];
  return state.scale === "all" && known.range ? known.range : [scores.low, scores.high];
}

/** A score at a share of the slider's way, cut to few digits and never above: at the end the highest stays. */
export function scoreAt([low, high], share) {
  const exact = low + share * (high - low);
  const digit = 10 ** (Math.floor(Math.log10(high - low)) - 5);
  return high > low ? Number((Math.floor(Math.min(exact, high) / digit) * digit).toPrecision(15)) : low;
}

export function howFor(model, scores) {
  const known = facts.models[model];
  const common = state.scale === "all" && known.range;
  return {
    palette: facts.palettes[state.palette],
    ends: known.ends,
    limits: common && known.colours ? known.colours : scores.colours,
    threshold: thresholdFor(model) ?? -Infinity,
    opacity: state.opacity,
    heat: state.heat,
    truth: state.truth,
    between: state.between,
  };
}

/** How many scores reach the threshold, as text; nothing without one. */
export function aboveThreshold(values, threshold) {
  return aboveText(threshold, values.reduce((sum, score) => sum + (score >= threshold), 0), values.length);
}
