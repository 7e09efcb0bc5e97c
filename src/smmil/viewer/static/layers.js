// One model's scores as a layer over a slide: a heat map, or lines around what reaches the threshold.
import { meanPerCell } from "./cells.js";
import { colourOf } from "./how.js";
import { make, shortNumber } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const DOT_CANVAS = 2048;

/** Scores on the lattice, in the form that paint.js takes. */
export function cellsFor(places, values) {
  return { rows: places.rows, columns: places.columns, extent: places.extent, scores: meanPerCell(places, values) };
}

/** Paint the scores that reach the threshold; transparent elsewhere. */
export function paintLayer(canvas, places, scores, how) {
  if (places.dots) return paintDots(canvas, places, scores.values, how.threshold, (score) => colourOf(score, how));
  scores.cells ??= cellsFor(places, scores.values);
  return paintHeat(canvas, scores.cells, how.limits, how.palette, how.threshold);
}

/** Points are drawn as dots where they are, the highest on top; nothing is moved to a lattice or averaged. */
export function paintDots(canvas, places, values, threshold, colour) {
  const [left, top, right, bottom] = places.extent;
  const scale = DOT_CANVAS / Math.max(right - left, bottom - top);
  canvas.width = Math.max(1, Math.ceil((right - left) * scale));
  canvas.height = Math.max(1, Math.ceil((bottom - top) * scale));
  canvas.classList.add("dots");
  const pen = canvas.getContext("2d");
  const radius = Math.max(2, (Math.min(...places.patch) / 2) * scale);
  const order = [...values.keys()].filter((i) => values[i] >= threshold).sort((a, b) => values[a] - values[b]);
  for (const i of order) {
    pen.fillStyle = colour(values[i]);
    pen.beginPath();
    pen.arc((places.x[i] + places.patch[0] / 2 - left) * scale, (places.y[i] + places.patch[1] / 2 - top) * scale, radius, 0, 7);
    pen.fill();
  }
}

/** The tissue as plain paper, for cases without pixels. */
export function paintPaper(canvas, places, colour) {
  const all = new Float32Array(places.n);
  if (places.dots) return paintDots(canvas, places, all, 0, () => colour);
  const cells = cellsFor(places, all);
  canvas.width = cells.columns;
  canvas.height = cells.rows;
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour;
  cells.scores.forEach((there, cell) => {
    if (!Number.isNaN(there)) pen.fillRect(cell % cells.columns, Math.floor(cell / cells.columns), 1, 1);
  });
}

/** Lines around the cells whose mean passes `test`; points have no outline, they get none. */
export function outlineOf(places, values, test, kinds) {
  const svg = document.createElementNS(SVG, "svg");
  if (places.dots) return svg;
  svg.setAttribute("viewBox", `0 0 ${places.columns} ${places.rows}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const known = Uint8Array.from(meanPerCell(places, values), (value) => (test(value) ? 1 : 0));
  const shape = truthPath({ rows: places.rows, columns: places.columns, known });
  for (const kind of kinds) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", shape);
    svg.append(path);
  }
  return svg;
}

/** A bar whose words stand beside it: however short it gets, they are never wider than what they measure. */
export function makeScaleBar() {
  const bar = make("div", "scale-bar");
  bar.append(make("span"));
  return bar;
}

/** The colour scale with its ends. */
export function makeLegend() {
  const legend = make("div", "colour-legend");
  legend.append(make("span", "low"), make("canvas", "colour-bar"), make("span", "high"));
  return legend;
}

export function paintLegend(legend, how) {
  const bar = legend.querySelector(".colour-bar");
  [bar.width, bar.height] = [256, 1];
  const pen = bar.getContext("2d");
  const image = pen.createImageData(256, 1);
  for (let i = 0; i < 256; i++) image.data.set([...how.palette.slice(3 * i, 3 * i + 3), 255], 4 * i);
  pen.putImageData(image, 0, 0);
  legend.querySelector(".low").textContent = shortNumber(how.limits[0]);
  legend.querySelector(".high").textContent = shortNumber(how.limits[1]);
}
