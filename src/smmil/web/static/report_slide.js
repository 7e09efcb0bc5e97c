// A zoomable slide with its heat map, or with one dot per instance where instances lie on no lattice.
import { colourOf, dotRadius, freshCanvas, makeOutline, paintDots, paintHeat, paintTissue } from "./paint.js";
import { DATA, layerOf, pictureOf } from "./report_data.js";
import { lengthText, make, percent, roundedLength, scoreText, themeColour } from "./dom_helpers.js";
import { ZoomPane, around } from "./zoom_pane.js";

/** The rectangle that all panes of a case show, so that their zooms can be linked. */
function worldOf(number) {
  const entry = DATA.cases[number];
  if (entry.picture) {
    const [x, y, width, height] = entry.picture;
    return { x, y, width, height };
  }
  const extents = entry.verdicts.filter((verdict) => verdict && isFlat(verdict.rasters.score)).map((verdict) => verdict.rasters.score.extent);
  return around([Math.min, Math.min, Math.max, Math.max].map((end, i) => end(...extents.map((extent) => extent[i]))));
}

/** Whether a raster lies in the plane of a slide, as tiles or as dots. */
export function isFlat(raster) {
  return raster.kind === "map" || raster.kind === "points";
}

export class SlidePane extends ZoomPane {
  constructor(host, number, model, cells) {
    const { id, spacing, unit } = DATA.cases[number];
    super(worldOf(number), spacing || 1, unit);
    Object.assign(this, { host, number, model, cells });
    this.readout = make("p", "readout");
    host.append(this.stage, this.readout);
    this.heat = make("canvas", "heat");
    this.outline = make("div", "outline");
    const url = pictureOf(number) || this.base().toDataURL("image/png");
    const label = `Map of ${id} by ${DATA.models[model].name}`;
    this.open({ type: "image", url, buildPyramid: false }, label, { maxZoomPixelRatio: 60 }, () => this.lay());
  }

  /** What lies below the map when there is no picture of the slide. */
  base() {
    const scale = 1024 / Math.max(this.world.width, this.world.height);
    return paintTissue(make("canvas"), this.cells, this.world, scale, themeColour("--tissue"));
  }

  lay() {
    if (this.cells.truth) this.outline.append(makeOutline(this.cells, this.cells.labels));
    this.cover(this.heat, this.cells.extent);
    this.cover(this.outline, this.cells.extent);
  }

  /** Other numbers for the same cells. */
  use(cells) {
    this.cells = cells;
  }

  show(how) {
    this.shown = paintHeat(this.heat, this.cells, how);
    this.heat.style.opacity = how.heat ? how.opacity : 0;
    this.outline.style.visibility = how.truth ? "visible" : "hidden";
  }

  /** Width of a cell in words. */
  cellWidth() {
    const { extent: [left, , right], columns } = this.cells;
    return lengthText(roundedLength(((right - left) / columns) * this.spacing), this.unit);
  }

  read(event) {
    const cell = cellAt(this.cells, ...this.placeUnder(event));
    this.readout.textContent = cell === null ? "" : cellText(this.cells, cell);
  }
}

/** Dots keep a visible size on the screen, so they are drawn again for every view. */
export class PointsPane extends SlidePane {
  /** Dots are never interpolated. */
  cellWidth() {
    return null;
  }

  /** Canvases of the size of the stage: places without a colour, scores, rings of the truth. */
  lay() {
    this.places = make("canvas", "dots");
    this.heat.className = "heat dots";
    this.rings = make("canvas", "dots outline");
    this.bar.before(this.places, this.heat, this.rings);
  }

  base() {
    const canvas = make("canvas");
    const longest = Math.max(this.world.width, this.world.height);
    canvas.width = Math.max(1, Math.round((512 * this.world.width) / longest));
    canvas.height = Math.max(1, Math.round((512 * this.world.height) / longest));
    return canvas;
  }

  show(how) {
    this.how = how;
    this.shown = this.cells.scores.reduce((count, score) => count + (score >= how.threshold), 0);
    this.heat.style.opacity = how.heat ? how.opacity : 0;
    this.draw();
  }

  measure() {
    super.measure();
    this.draw();
  }

  view() {
    const bounds = this.viewer.viewport.getBounds(true);
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    const unit = this.world.width;
    return {
      left: bounds.x * unit + this.world.x, top: bounds.y * unit + this.world.y,
      scale: width / (bounds.width * unit), width, height,
    };
  }

  draw() {
    if (!this.how || !this.places) return;
    const view = this.view();
    const [below, heat, rings] = [this.places, this.heat, this.rings].map((canvas) => freshCanvas(canvas, view.width, view.height));
    const hot = this.cells.order.filter((i) => this.cells.scores[i] >= this.how.threshold);
    const paper = themeColour("--soft");
    if (!pictureOf(this.number)) paintDots(below, this.cells, view, this.cells.order, () => paper);
    paintDots(heat, this.cells, view, hot, (i) => colourOf(this.cells.scores[i], this.how));
    if (this.cells.truth && this.how.truth) paintRings(rings, this.cells, view);
  }

  /** The nearest dot under the pointer. */
  read(event) {
    const [x, y] = this.placeUnder(event);
    const view = this.view();
    let [best, nearest] = [-1, (dotRadius(this.cells, view) + 2) / view.scale];
    for (let i = 0; i < this.cells.cells; i++) {
      const distance = Math.hypot(this.cells.x[i] - x, this.cells.y[i] - y);
      if (distance < nearest) [best, nearest] = [i, distance];
    }
    this.readout.textContent = best < 0 ? "" : cellText(this.cells, best);
  }
}

/** The border of all lesions together, white on dark so that it shows on every colour; dots that touch share one. */
function paintRings(pen, cells, view) {
  const radius = dotRadius(cells, view);
  const lesions = [...cells.labels.keys()].filter((i) => cells.labels[i] === 1);
  const discs = (more) => {
    const all = new Path2D();
    for (const i of lesions) {
      const [x, y] = [(cells.x[i] - view.left) * view.scale, (cells.y[i] - view.top) * view.scale];
      all.moveTo(x + radius + more, y);
      all.arc(x, y, radius + more, 0, 2 * Math.PI);
    }
    return all;
  };
  for (const [colour, more] of [["#101010", 3.2], ["#ffffff", 2.2]]) {
    pen.fillStyle = colour;
    pen.fill(discs(more));
  }
  pen.globalCompositeOperation = "destination-out";
  pen.fill(discs(0.4));
}

/** The cell at a place in coordinate units; null outside. */
export function cellAt({ extent: [left, top, right, bottom], columns, rows }, x, y) {
  const column = Math.floor(((x - left) / (right - left)) * columns);
  const row = Math.floor(((y - top) / (bottom - top)) * rows);
  return column < 0 || row < 0 || column >= columns || row >= rows ? null : row * columns + column;
}

export function cellText(cells, cell) {
  const score = cells.scores[cell];
  if (Number.isNaN(score)) return "no tissue";
  const above = cells.scores.reduce((count, other) => count + (other > score), 0);
  const said = scoreText(score, above + 1, cells.cells, cells.truth ? cells.labels[cell] : -1, layerOf(cells.layer).kind);
  return cells.curve ? `${said} · calibrated probability ${percent(onCurve(cells.curve, score))}` : said;
}

/** The calibrated probability of a score, on straight lines between evenly spaced ones. */
function onCurve([low, high, probabilities], score) {
  const place = high > low ? Math.min(1, Math.max(0, (score - low) / (high - low))) * (probabilities.length - 1) : 0;
  const [below, share] = [Math.floor(place), place % 1];
  return probabilities[below] + share * ((probabilities[below + 1] ?? probabilities[below]) - probabilities[below]);
}
