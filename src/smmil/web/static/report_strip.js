// A scan as a strip: one bar per slice above a band of truth, and beside it the slice, with the map of its patches where
// it was cut into some. Without coordinates: instances from hottest to coldest.
import { BarStrip } from "./bars.js";
import { shown } from "./report_case.js";
import { paintOver } from "./paint.js";
import { DATA, perSlice, pictureOf, sliceCells } from "./report_data.js";
import { cellAt, cellText } from "./report_slide.js";
import { makeSides, showSides, sidesOf } from "./sides.js";
import { lengthText, make, makeButton, roundLength, themeColour } from "./dom_helpers.js";

const HIGHEST = 5; // slices named below the strip
const LAYOUT = { top: 16, below: 36, band: 16, gap: 10, labelled: [0, 0.5, 1], fades: true };

export class StripPane extends BarStrip {
  constructor(host, number, model, cells) {
    super("strip", LAYOUT);
    Object.assign(this, { host, number, model });
    this.highest = make("p", "highest");
    this.use(cells);
    this.canvas.setAttribute("aria-label", `Scores of ${DATA.cases[number].id} by ${DATA.models[model].name}`);
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("keydown", (event) => this.keys(event));
    const row = make("div", "strip-row");
    row.append(this.stage);
    this.readout = make("p", "readout");
    this.picture = this.cells.volume || (cells.kind === "strip" && DATA.cases[number].slices) ? new SliceView(row, number, this) : null;
    host.append(row, this.highest, this.readout);
    this.ready = this.picture ? this.picture.ready : Promise.resolve();
    this.span = this.places.length;
    this.chosen = this.cells.scores.reduce((best, score, i) => (score > (this.cells.scores[best] ?? -Infinity) ? i : best), -1);
  }

  /** Other numbers for the same places. */
  use(cells) {
    this.cells = cells.kind === "volume" ? perSlice(cells) : cells;
    cells = this.cells;
    this.series = { values: cells.scores, low: cells.low, high: cells.high, labels: cells.truth ? cells.labels : null };
    this.places = this.order();
    this.nameHighest();
  }

  /** The slices to look at first, as buttons; nothing where instances stand in that order anyway. */
  nameHighest() {
    this.highest.replaceChildren();
    if (this.cells.kind !== "strip") return;
    const scored = [...this.places.keys()].filter((place) => !Number.isNaN(this.cells.scores[this.places[place]]));
    scored.sort((a, b) => this.cells.scores[this.places[b]] - this.cells.scores[this.places[a]]);
    this.highest.append("highest slices: ");
    for (const place of scored.slice(0, HIGHEST)) {
      this.highest.append(makeButton(`${this.label(place)}`, this.words(place), () => chooseSlice(this.name(place))), " ");
    }
  }

  order() {
    const places = [...this.cells.scores.keys()];
    return this.cells.kind === "strip" ? places : places.sort((a, b) => this.cells.scores[b] - this.cells.scores[a]);
  }

  show(how) {
    this.how = how;
    const all = (this.cells.volume ?? this.cells).scores;
    this.shown = all.reduce((count, score) => count + (score >= how.threshold), 0);
    this.draw();
  }

  /** The range of places, and the chosen slice (the hottest at first) with a mark below its bar. */
  drawAbove(pen, height) {
    pen.fillStyle = themeColour("--soft");
    pen.textAlign = "center";
    const words = this.cells.kind === "strip" ? "slices" : "instances, highest first";
    const [first, last] = [this.label(this.from), this.label(this.from + this.span - 1)];
    pen.fillText(`${words}: ${first} to ${last}`, (this.area.left + this.area.right) / 2, height - 10);
    if (!this.picture) return;
    const place = this.places.indexOf(this.chosen);
    this.picture.show(Math.round(this.name(place)), this.words(place));
    if (place < this.from || place >= this.from + this.span) return;
    const x = this.middle(place);
    pen.fillStyle = themeColour("--ink");
    pen.beginPath();
    pen.moveTo(x, this.area.bottom + 1);
    pen.lineTo(x - 5, this.area.bottom + 8);
    pen.lineTo(x + 5, this.area.bottom + 8);
    pen.fill();
  }

  words(place) {
    const what = this.cells.volume ? "highest patch of slice" : this.cells.kind === "strip" ? "slice" : "instance";
    return `${what} ${this.label(place)} · ${cellText(this.cells, this.places[place])}`;
  }

  choose(name) {
    const place = this.places.findIndex((cell, i) => this.name(i) === name && !Number.isNaN(this.cells.scores[cell]));
    if (!this.picture || place < 0) return;
    this.chosen = this.places[place];
    this.draw();
  }

  /** Arrows go from slice to slice. */
  keys(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by || !this.picture) return;
    let place = this.places.indexOf(this.chosen) + by;
    while (Number.isNaN(this.cells.scores[this.places[place]])) place += by;
    if (place >= 0 && place < this.places.length) chooseSlice(this.name(place));
    event.preventDefault();
  }

  /** Coordinate of a place. */
  name(place) {
    if (this.cells.kind !== "strip") return place + 1;
    const [left, , right] = this.cells.extent;
    return Math.round((left + ((right - left) * this.places[place]) / this.cells.columns) * 100) / 100;
  }

  /** How readers count: slices from 1, as in the viewer; coordinates that do not count slices stay as they are. */
  label(place) {
    const [left, , right] = this.cells.extent;
    const counted = this.cells.kind === "strip" && Number.isInteger(left) && right - left === this.cells.columns;
    return counted ? this.name(place) + 1 : this.name(place);
  }

  read(event) {
    const place = this.placeAt(event);
    this.readout.textContent = place === null ? "" : this.words(place);
    if (place !== null && this.chosen !== this.places[place]) chooseSlice(this.name(place));
  }

  zoom(factor) {
    const middle = this.from + this.span / 2;
    this.span = Math.max(4, Math.min(this.places.length, Math.round(this.span / factor)));
    this.from = Math.max(0, Math.min(this.places.length - this.span, Math.round(middle - this.span / 2)));
    this.draw();
  }

  whole() {
    [this.from, this.span] = [0, this.places.length];
    this.draw();
  }
}

/** The same slice in all panes. */
function chooseSlice(name) {
  for (const pane of shown.panes) if (pane instanceof StripPane) pane.choose(name);
}

const PAPER = 384; // pixels of the longer side of a map without pictures
const FINER = 2; // pixels of a map per pixel of its picture, for sharp borders

/** One slice of a scan, cut from the picture that holds all of them, below the map of its patches where there is one. */
class SliceView {
  constructor(host, number, pane) {
    const { slices, voxels, sides, wide_mm: wide } = DATA.cases[number];
    const [across, width, height, count] = slices ?? [1, ...paperSize(pane.cells.volume.extent), Infinity];
    Object.assign(this, { across, width, height, count, voxels, wide, pane, drawn: Boolean(slices) });
    this.canvas = make("canvas", "slice");
    this.canvas.addEventListener("pointermove", (event) => this.read(event));
    this.canvas.addEventListener("pointerleave", () => { pane.readout.textContent = ""; });
    this.canvas.setAttribute("role", "img");
    this.caption = make("figcaption", "");
    const figure = make("figure", "slice-view");
    const box = make("div", "slice-box");
    const letters = makeSides();
    showSides(letters, sides && sidesOf(sides[0], sides[1]));
    this.bar = make("div", "scale-bar");
    this.bar.append(make("span"));
    box.append(this.canvas, letters, this.bar);
    figure.append(box, this.caption);
    host.append(figure);
    this.image = new Image();
    this.ready = !this.drawn ? Promise.resolve() : new Promise((done) => {
      this.image.addEventListener("load", done);
      this.image.addEventListener("error", done);
    });
    if (this.drawn) this.image.src = pictureOf(number);
  }

  show(slice, words) {
    if (slice < 0 || slice >= this.count) return;
    const { volume } = this.pane.cells;
    const finer = volume ? FINER : 1;
    [this.canvas.width, this.canvas.height] = [this.width * finer, this.height * finer];
    const pen = this.canvas.getContext("2d");
    const [column, row] = [slice % this.across, Math.floor(slice / this.across)];
    const from = [column * this.width, row * this.height, this.width, this.height];
    if (this.drawn) pen.drawImage(this.image, ...from, 0, 0, this.canvas.width, this.canvas.height);
    this.cells = volume ? sliceCells(volume, slice) : null;
    if (this.cells) paintOver(pen, this.cells, this.view(), { ...this.pane.how, truth: this.pane.how.truth && volume.truth });
    this.measure();
    this.canvas.dataset.slice = slice;
    this.canvas.setAttribute("aria-label", words);
    this.caption.textContent = words;
  }

  /** The corner of the canvas in voxels and its pixels per voxel. */
  view() {
    const [left, top, right, bottom] = this.voxels ? [0, 0, ...this.voxels] : this.cells.extent;
    return { left, top, across: this.canvas.width / (right - left), down: this.canvas.height / (bottom - top) };
  }

  /** The patch under the pointer. */
  read(event) {
    if (!this.cells) return;
    const shape = this.canvas.getBoundingClientRect();
    const { width, height } = this.canvas;
    const scale = Math.min(shape.width / width, shape.height / height); // whole and in the middle of its place
    const { left, top, across, down } = this.view();
    const x = (event.clientX - shape.left - shape.width / 2) / scale + width / 2;
    const y = (event.clientY - shape.top - shape.height / 2) / scale + height / 2;
    const cell = cellAt(this.cells, left + x / across, top + y / down);
    const { volume } = this.pane.cells;
    this.pane.readout.textContent = cell === null ? "" : cellText(volume, cell + this.offset());
  }

  /** Number of the slice's first cell among all. */
  offset() {
    return (this.cells.scores.byteOffset - this.pane.cells.volume.scores.byteOffset) / this.cells.scores.BYTES_PER_ELEMENT;
  }

  /** A bar of a round length in millimetres, for the size at which the slice is shown. */
  measure() {
    this.bar.hidden = !this.wide;
    const shown = Math.min(this.canvas.clientWidth, (this.canvas.clientHeight * this.width) / this.height);
    if (!this.wide || !shown) return;
    const length = roundLength((90 * this.wide) / shown);
    this.bar.style.width = `${(length / this.wide) * shown}px`;
    this.bar.firstChild.textContent = lengthText(length, "mm");
  }
}

function paperSize([left, top, right, bottom]) {
  const unit = PAPER / Math.max(right - left, bottom - top);
  return [Math.max(1, Math.round((right - left) * unit)), Math.max(1, Math.round((bottom - top) * unit))];
}
