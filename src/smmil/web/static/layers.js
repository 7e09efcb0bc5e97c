// One model's scores as a layer over a slide: a heat map, or lines around what reaches the threshold.
import { meanPerCell } from "./cells.js";
import { coldestFirst, colourOf, makeOutline, paintDots, paintHeat, paintTissue } from "./paint.js";
import { make } from "./dom_helpers.js";

const DOT_CANVAS = 2048;
const PAPER_CANVAS = 1024;

/** Scores on the lattice, in the form that paint.js takes. */
function cellsFor(places, values) {
  return { rows: places.rows, columns: places.columns, extent: places.extent, scores: meanPerCell(places, values) };
}

function worldOf([left, top, right, bottom]) {
  return { x: left, y: top, width: right - left, height: bottom - top };
}

/** Paint the scores that reach the threshold; the rest stays transparent. */
export function paintLayer(canvas, places, scores, how) {
  if (places.dots) {
    const chosen = coldestFirst(scores.values).filter((i) => scores.values[i] >= how.threshold);
    return paintAllDots(canvas, places, chosen, (i) => colourOf(scores.values[i], how));
  }
  scores.cells ??= cellsFor(places, scores.values);
  return paintHeat(canvas, scores.cells, how);
}

/** Points are drawn as dots where they are, the highest on top; nothing is moved to a lattice or averaged. */
function paintAllDots(canvas, places, chosen, shade) {
  const { x: left, y: top, width, height } = worldOf(places.extent);
  const scale = DOT_CANVAS / Math.max(width, height);
  canvas.width = Math.max(1, Math.ceil(width * scale));
  canvas.height = Math.max(1, Math.ceil(height * scale));
  canvas.classList.add("dots");
  const view = { left, top, scale, width: canvas.width, height: canvas.height, smallest: 2 };
  paintDots(canvas.getContext("2d"), places.dots, view, chosen, shade);
}

/** The tissue in one colour, for cases without pixels. */
export function paintPaper(canvas, places, colour) {
  const all = new Float32Array(places.n);
  if (places.dots) return paintAllDots(canvas, places, all.keys(), () => colour);
  const world = worldOf(places.extent);
  return paintTissue(canvas, cellsFor(places, all), world, PAPER_CANVAS / Math.max(world.width, world.height), colour);
}

/** Lines around the cells whose mean passes `test`; points have no outline. */
export function outlineOf(places, values, test) {
  if (places.dots) return make("span");
  return makeOutline(places, Uint8Array.from(meanPerCell(places, values), (value) => (test(value) ? 1 : 0)));
}
