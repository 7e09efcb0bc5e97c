// What the server has: cases and models, read once; a case's own numbers when it is opened.
import { askJson, askNumbers } from "./server.js";
import { limitsOf, listed, placesOf } from "./cells.js";

export const facts = { title: "", software: "", threshold: null, models: [], cases: [], palettes: {} };
const KEPT = 6; // opened cases in memory; the oldest goes first
const kept = new Map();

export async function loadFacts() {
  Object.assign(facts, await askJson("/api/cases"));
  for (const [name, text] of Object.entries(facts.palettes)) {
    facts.palettes[name] = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  }
}

/** Everything about one case that all its panes share. */
export function openedCase(number) {
  if (!kept.has(number)) {
    const opened = open(number);
    opened.catch(() => kept.delete(number)); // a failed answer is asked for again
    kept.set(number, opened);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(number);
}

async function open(number) {
  const entry = facts.cases[number];
  const info = await askJson(`/api/case/${number}`);
  const n = info.instances;
  const axes = { slide: 2, points: 2, scan: 1 }[info.kind];
  const [coords, truth] = await Promise.all([
    axes ? askNumbers(`/api/case/${number}/coords`, Float32Array, n * axes) : null,
    entry.truth ? askNumbers(`/api/case/${number}/truth`, Int8Array, n) : null,
  ]);
  const places = axes === 2 ? placesOf(info, coords) : listed(info, coords);
  return { number, entry, info, coords, truth, places, scores: new Map() };
}

/** Scores of one model with what colours need: lowest, highest, ends of the scale. */
export async function scoresOf(opened, model) {
  if (!opened.info.models[model].present) return null;
  if (!opened.scores.has(model)) {
    const values = await askNumbers(`/api/case/${opened.number}/scores/${model}`, Float32Array, opened.info.instances);
    opened.scores.set(model, { values, ...limitsOf(values) });
  }
  return opened.scores.get(model);
}

/** The models that say something about this case, those the reader chose first. */
export function presentModels(opened, wanted) {
  const there = wanted.filter((m, i) => m !== null && opened.info.models[m].present && wanted.indexOf(m) === i);
  return there.length ? there : [opened.info.models.findIndex((model) => model.present)];
}
