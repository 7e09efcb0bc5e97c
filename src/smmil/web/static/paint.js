// Scores to pixels, outlines and legends.
import { make, shortNumber } from "./dom_helpers.js";

const SVG = "http://www.w3.org/2000/svg";
const SMALLEST_DOT = 2.2; // radius in pixels of the screen: a smaller instance must still be seen

/** One pixel per cell: colour by score, transparent without tissue and below the threshold. Returns the cells shown. */
export function paintHeat(canvas, cells, how) {
  canvas.width = cells.columns;
  canvas.height = cells.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(cells.columns, cells.rows);
  let shown = 0;
  for (let cell = 0; cell < cells.scores.length; cell++) {
    const score = cells.scores[cell];
    if (!(score >= how.threshold)) continue;
    shown++;
    const colour = colourIndex(score, how.limits) * 3;
    image.data.set([how.palette[colour], how.palette[colour + 1], how.palette[colour + 2], 255], cell * 4);
  }
  context.putImageData(image, 0, 0);
  return shown;
}

function colourIndex(score, limits) {
  const share = (score - limits[0]) / (limits[1] - limits[0]);
  return Math.max(0, Math.min(255, Math.round(share * 255)));
}

export function colourOf(score, how) {
  const at = colourIndex(score, how.limits) * 3;
  return `rgb(${how.palette[at]},${how.palette[at + 1]},${how.palette[at + 2]})`;
}

/** The tissue in one colour, `scale` pixels per unit, for cases without a picture of the slide. */
export function paintTissue(canvas, cells, world, scale, colour) {
  canvas.width = Math.max(1, Math.round(world.width * scale));
  canvas.height = Math.max(1, Math.round(world.height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour;
  const [left, top, right, bottom] = cells.extent;
  const wide = (right - left) / cells.columns;
  const high = (bottom - top) / cells.rows;
  cells.scores.forEach((score, cell) => {
    if (Number.isNaN(score)) return;
    const x = (left + (cell % cells.columns) * wide - world.x) * scale;
    const y = (top + Math.floor(cell / cells.columns) * high - world.y) * scale;
    pen.fillRect(x, y, wide * scale + 0.5, high * scale + 0.5);
  });
  return canvas;
}

/** SVG path around the cells that are 1, in cells. */
function outlinePath(rows, columns, marked) {
  const inside = (row, column) => row >= 0 && column >= 0 && row < rows && column < columns && marked[row * columns + column] === 1;
  const pieces = [];
  for (let row = 0; row <= rows; row++) {
    for (let column = 0; column <= columns; column++) {
      if (inside(row, column) !== inside(row - 1, column)) pieces.push(`M${column} ${row}h1`);
      if (inside(row, column) !== inside(row, column - 1)) pieces.push(`M${column} ${row}v1`);
    }
  }
  return pieces.join("");
}

/** Lines around the cells that are 1: a dark one below a light one, so that they show on every colour. */
export function makeOutline({ rows, columns }, marked) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const shape = outlinePath(rows, columns, marked);
  for (const kind of ["under", "over"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", shape);
    svg.append(path);
  }
  return svg;
}

/** A map and the border of its lesions over a picture. view: corner of the picture, and its pixels per unit across and
 * down. */
export function paintOver(pen, cells, view, how) {
  const [left, top, right, bottom] = cells.extent;
  const box = [(left - view.left) * view.across, (top - view.top) * view.down, (right - left) * view.across, (bottom - top) * view.down];
  if (how.heat) {
    const heat = make("canvas");
    paintHeat(heat, cells, how);
    pen.imageSmoothingEnabled = false;
    pen.globalAlpha = how.opacity;
    pen.drawImage(heat, ...box);
    pen.globalAlpha = 1;
  }
  if (!how.truth || !cells.labels) return;
  const border = new Path2D();
  const cell = [box[2] / cells.columns, box[3] / cells.rows];
  border.addPath(new Path2D(outlinePath(cells.rows, cells.columns, cells.labels)), new DOMMatrix([cell[0], 0, 0, cell[1], box[0], box[1]]));
  for (const [colour, wide] of [["#101010", 4], ["#ffffff", 2]]) {
    [pen.strokeStyle, pen.lineWidth] = [colour, wide];
    pen.stroke(border);
  }
}

/** Radius of a dot on a canvas. view: corner of the canvas and pixels per unit, size of the canvas, smallest radius. */
export function dotRadius(dots, view) {
  return Math.max(view.smallest ?? SMALLEST_DOT, ((dots.width || 0) * view.scale) / 2);
}

/** Dots of the chosen instances in view, given from coldest to hottest; `shade` gives each one's colour. */
export function paintDots(pen, dots, view, chosen, shade) {
  const radius = dotRadius(dots, view);
  let last = null;
  pen.beginPath();
  for (const i of chosen) {
    const x = (dots.x[i] - view.left) * view.scale;
    const y = (dots.y[i] - view.top) * view.scale;
    if (x < -radius || y < -radius || x > view.width + radius || y > view.height + radius) continue;
    const colour = shade(i);
    if (colour !== last) {
      pen.fill();
      pen.beginPath();
      pen.fillStyle = colour;
      last = colour;
    }
    pen.moveTo(x + radius, y);
    pen.arc(x, y, radius, 0, 2 * Math.PI);
  }
  pen.fill();
}

export function coldestFirst(scores) {
  return Uint32Array.from(scores.keys()).sort((a, b) => scores[a] - scores[b]);
}

/** A canvas fitted to an area of the screen, sharp on every display; returns its pen. */
export function freshCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
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
  const [low, high] = how.ends ?? ["", ""];
  legend.querySelector(".low").textContent = `${low} ${shortNumber(how.limits[0])}`.trim();
  legend.querySelector(".high").textContent = `${shortNumber(how.limits[1])} ${high}`.trim();
}
