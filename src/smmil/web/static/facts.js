// What the server has: cases and models, read once; a case's own numbers when it is opened.
import { Outdated, askJson, askNumbers, belongTo } from "./server.js";
import { limitsOf, listed, placesOf } from "./cells.js";
import { fromBase64, remembered } from "./dom_helpers.js";

export const facts = { title: "", software: "", threshold: null, models: [], cases: [], palettes: {}, notes: [] };
const MOST_OPENED = 6; // opened cases in memory; the oldest goes first

export async function loadFacts() {
  belongTo(null); // the first question is open to every start of the server
  Object.assign(facts, await askJson("/api/cases"));
  belongTo(facts.study);
  for (const [name, text] of Object.entries(facts.palettes)) {
    facts.palettes[name] = fromBase64(text);
  }
}

/** Everything about one case that all its panes share. */
export const openedCase = remembered(MOST_OPENED, open);

async function open(number) {
  const entry = facts.cases[number];
  const info = await askJson(`/api/case/${number}`);
  if (info.id !== entry.id) throw new Outdated();
  const n = info.instances;
  const axes = { slide: 2, points: 2, scan: info.axes }[info.kind];
  const [coords, truth] = await Promise.all([
    axes ? askNumbers(`/api/case/${number}/coords`, Float32Array, n * axes) : null,
    entry.truth ? askNumbers(`/api/case/${number}/truth`, Int8Array, n) : null,
  ]);
  const places = axes === 2 ? placesOf(info, coords) : listed(info, coords);
  return { number, entry, info, coords, truth, places, scores: new Map() };
}

/** Ask for the notes of a case again: damage shows only when tiles are read. */
export async function refreshNotes(opened) {
  opened.info.notes = (await askJson(`/api/case/${opened.number}`)).notes;
}

/** Why images that were given are not shown; nothing when they are shown or were not given. */
export function refusalOf({ entry, info }) {
  if (!entry.image || info.image || info.scan || info.kind === "none") return null;
  return info.notes?.length === 1 ? info.notes[0] : "the reason stands under Good to know";
}

/** Scores of one model with what colours need: lowest, highest, ends of the scale. */
export async function scoresOf(opened, model) {
  if (!opened.info.models[model].present) return null;
  if (!opened.scores.has(model)) {
    const values = await askNumbers(`/api/case/${opened.number}/scores/${model}`, Float32Array, opened.info.instances);
    const { fixed, colours } = facts.models[model];
    opened.scores.set(model, { values, ...limitsOf(values), ...(fixed ? { colours } : {}) });
  }
  return opened.scores.get(model);
}

/** The models that have a map of this case, those the reader chose first. */
export function presentModels(opened, wanted) {
  const there = wanted.filter((m, i) => m !== null && opened.info.models[m].present && wanted.indexOf(m) === i);
  return there.length ? there : [opened.info.models.findIndex((model) => model.present)];
}
