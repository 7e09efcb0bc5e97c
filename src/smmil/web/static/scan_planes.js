// Two planes across the slices of a scan, through the voxel under the pointer, with the slices' scores beside them.
import { colourOf } from "./paint.js";
import { OPPOSITE, makeSides, showSides, sidesOf } from "./sides.js";
import { paintSlice, sliceOf } from "./slices.js";
import { make } from "./dom_helpers.js";

const MOST_BYTES = 384 * 2 ** 20; // of all slices together in the browser's memory
const AT_ONCE = 4;
const NAMES = { L: "sagittal", R: "sagittal", A: "coronal", P: "coronal", S: "axial", I: "axial" };
/** Whether all slices of a scan fit into the browser's memory. */
export function fitsInMemory(scan) {
  return scan.slices * scan.rows * scan.columns * (scan.numbers === "float32" ? 4 : 2) <= MOST_BYTES;
}

class PlaneView {
  /** `axis`: "row" is the plane of one row in all slices, "column" that of one column. */
  constructor(host, scan, axis, choose) {
    Object.assign(this, { scan, axis });
    this.length = axis === "row" ? scan.columns : scan.rows;
    this.headFirst = !"PILR".includes(scan.orientation?.[2] ?? "S"); // heads and faces on top
    this.figure = make("figure", "plane");
    this.box = make("div", "plane-box");
    this.scores = make("canvas", "plane-scores");
    this.canvas = make("canvas", "plane-pixels");
    this.canvas.dataset.axis = axis;
    [this.level, this.place] = [make("i", "level"), make("i", "place")];
    const picture = make("div", "plane-picture");
    this.sides = makeSides();
    picture.append(this.canvas, this.level, this.place, this.sides);
    this.box.append(this.scores, picture);
    this.caption = make("figcaption");
    this.figure.append(this.box, this.caption);
    host.append(this.figure);
    const [across, down, up] = scan.orientation ?? "";
    const vertical = this.headFirst ? OPPOSITE[up] : up;
    showSides(this.sides, scan.orientation && sidesOf(axis === "row" ? across : down, vertical));
    this.name = NAMES[axis === "row" ? down : across] ?? (axis === "row" ? "across rows" : "across columns");
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      choose(axis === "row" ? "column" : "row", Math.floor(x * this.length), this.sliceAt(Math.floor(y * scan.slices)));
    });
  }

  sliceAt(line) {
    return this.headFirst ? this.scan.slices - 1 - line : line;
  }

  /** Pixels of this plane from the slices that have come; the others stay at the lowest value. */
  paint(slices, at, chosen) {
    const { slices: count, columns } = this.scan;
    const values = new Float32Array(count * this.length).fill(chosen[0] - chosen[1]);
    for (let line = 0; line < count; line++) {
      const slice = slices[this.sliceAt(line)];
      if (!slice) continue;
      for (let i = 0; i < this.length; i++) values[line * this.length + i] = slice[this.axis === "row" ? at * columns + i : i * columns + at];
    }
    paintSlice(this.canvas, values, count, this.length, chosen);
    this.caption.textContent = `${this.name} · ${this.axis} ${at + 1}`;
    this.canvas.dataset.at = at;
  }

  /** One line of colour per slice; slices without a score, or below the threshold, stay dark. */
  paintScores(colours) {
    [this.scores.width, this.scores.height] = [1, this.scan.slices];
    const pen = this.scores.getContext("2d");
    for (let line = 0; line < this.scan.slices; line++) {
      pen.fillStyle = colours[this.sliceAt(line)] ?? "#20242a";
      pen.fillRect(0, line, 1, 1);
    }
  }

  /** Where the other pictures cut this one, in shares of its height and width. */
  mark(slice, other) {
    const line = this.headFirst ? this.scan.slices - 1 - slice : slice;
    this.level.style.top = `${((line + 0.5) / this.scan.slices) * 100}%`;
    this.place.style.left = `${((other + 0.5) / this.length) * 100}%`;
  }

  /** As large as fits, in millimetres. */
  fit(width, height) {
    const [z, y, x] = this.scan.spacing ?? [1, 1, 1];
    const [wide, high] = [this.length * (this.axis === "row" ? x : y), this.scan.slices * z];
    const scale = Math.min((width - 40) / wide, (height - 56) / high);
    Object.assign(this.canvas.style, { width: `${wide * scale}px`, height: `${high * scale}px` });
    this.scores.style.height = `${high * scale}px`;
  }
}

export class ScanPlanes {
  /** `moved` is called with a row, a column and a slice that were chosen in a plane. */
  constructor(host, opened, moved) {
    Object.assign(this, { host, opened, scan: opened.info.scan, slices: [], asked: false, closed: false });
    const { rows, columns } = this.scan;
    Object.assign(this, { row: rows >> 1, column: columns >> 1 });
    const choose = (axis, at, slice) => {
      this[axis] = at;
      moved(slice);
    };
    this.views = [new PlaneView(host, this.scan, "row", choose), new PlaneView(host, this.scan, "column", choose)];
  }

  /** Read all slices, a few at a time; `come` is called as they arrive. */
  async load(come) {
    if (this.asked) return;
    this.asked = true;
    let next = 0;
    const reader = async () => {
      while (next < this.scan.slices && !this.closed) {
        const k = next++;
        this.slices[k] = await sliceOf(this.opened.number, k, this.scan);
        come();
      }
    };
    try {
      await Promise.all(Array.from({ length: AT_ONCE }, reader));
    } catch (problem) {
      this.asked = false; // looking again asks again
      throw problem;
    }
  }

  through(row, column) {
    Object.assign(this, { row, column });
  }

  show(slice, chosen, scoreOf, how) {
    const colours = Array.from({ length: this.scan.slices }, (_, k) => {
      const score = scoreOf(k);
      return score >= how.threshold && how.heat ? colourOf(score, how) : undefined;
    });
    const [width, height] = [this.host.clientWidth, this.host.clientHeight / 2];
    this.views.forEach((view, i) => {
      view.paint(this.slices, i === 0 ? this.row : this.column, chosen);
      view.paintScores(colours);
      view.mark(slice, i === 0 ? this.column : this.row);
      view.fit(width, height);
    });
  }

  close() {
    this.closed = true;
    this.slices = [];
  }
}
