// A scan: one slice, with the map of its patches where it was cut into some, a slider through all of them, and a strip of
// scores for every model.
import { highest, instanceAt, instancePerSlice, patchesOf, sliceCells } from "./cells.js";
import { refusalOf } from "./facts.js";
import { howFor } from "./display_settings.js";
import { note } from "./messages.js";
import { colourOf, freshCanvas, paintOver } from "./paint.js";
import { report } from "./server.js";
import { paintSlice, sliceOf, windowOf } from "./slices.js";
import { change, state } from "./state.js";
import { ScoreStrip } from "./score_strip.js";
import { make } from "./dom_helpers.js";

const WHEEL = 40; // pixels of wheel for one slice

function withoutImages(opened) {
  const why = refusalOf(opened);
  return why === null ? "No images of this scan were given: only its scores are shown." : `Images were given but refused: ${why}`;
}

export class ScanPane {
  constructor(host, opened) {
    const { scan } = opened.info;
    Object.assign(this, { host, opened, scan, strips: [], factor: 1, moved: [0, 0], wheeled: 0, painted: "" });
    this.count = scan?.slices ?? opened.places.slice.reduce((a, b) => Math.max(a, b), 0) + opened.places.depth;
    this.cut = opened.info.axes === 3 && !opened.places.dots; // into patches, which have a map in every slice
    this.order = [];
    host.classList.add("scan");
    host.classList.toggle("no-images", !scan);
    this.stage = this.makeStage();
    this.below = make("div", "strips");
    host.append(this.stage, this.makeSlider(), this.below);
    this.ready = Promise.resolve();
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.stage);
  }

  makeStage() {
    const stage = make("div", "stage slice-stage");
    stage.tabIndex = 0;
    stage.setAttribute("role", "img");
    this.canvas = make("canvas", "slice");
    this.map = make("canvas", "slice-map");
    this.words = make("p", "slice-words");
    stage.append(...(this.scan ? [this.canvas, this.map] : [make("p", "empty", withoutImages(this.opened))]), this.words);
    stage.addEventListener("click", (event) => this.pick(event));
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("keydown", (event) => this.keys(event));
    stage.addEventListener("pointermove", (event) => event.buttons && this.drag(event));
    return stage;
  }

  makeSlider() {
    const label = make("label", "slider");
    this.slider = make("input");
    Object.assign(this.slider, { type: "range", id: "slice", min: 1, max: this.count, step: 1 });
    this.slider.addEventListener("input", () => this.goToSlice(Number(this.slider.value) - 1));
    label.append(make("span", "", "Slice"), this.slider);
    return label;
  }

  setModels(pairs) {
    this.closeStrips();
    this.below.replaceChildren();
    this.pairs = pairs;
    this.order = instancePerSlice(this.opened.places, pairs[0][1].values, this.count);
    this.strips = pairs.map(([model, scores]) => {
      const strip = new ScoreStrip(this.below, this.opened, this.order, "slice", (place) => this.goToSlice(place));
      strip.setModel(model, scores, this.cut ? this.truthOfSlices() : undefined);
      return strip;
    });
    if (state.slice >= this.count) note(`This link does not fit: slice ${state.slice + 1} is not in ${this.opened.entry.id}, which has ${this.count}.`);
    this.goToSlice(state.slice ?? this.middleOf(highest(pairs[0][1].values, 1)[0]));
  }

  /** The truth of every slice at the patch that stands for it: a lesion if one of its patches is. */
  truthOfSlices() {
    const { truth, places } = this.opened;
    const labels = truth?.slice() ?? null;
    this.order.forEach((instance, k) => {
      if (labels && instance !== undefined) labels[instance] = patchesOf(places, k).reduce((most, i) => Math.max(most, truth[i]), -1);
    });
    return labels;
  }

  goToSlice(k) {
    const slice = Math.max(0, Math.min(this.count - 1, k));
    change({ slice, patch: this.order[slice] ?? null });
  }

  goTo(instance) {
    this.goToSlice(this.middleOf(instance));
  }

  /** The slice in the middle of an instance, which may run through several. */
  middleOf(instance) {
    const { slice, depth } = this.opened.places;
    return Math.min(this.count - 1, slice[instance] + Math.floor((depth - 1) / 2));
  }

  /** Choose the patch under the pointer. */
  pick(event) {
    if (!this.cut || !this.scan) return;
    const shape = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - shape.left) / shape.width) * this.scan.columns;
    const y = ((event.clientY - shape.top) / shape.height) * this.scan.rows;
    const chosen = patchesOf(this.opened.places, state.slice);
    const { places } = this.opened;
    const [left, top] = [places.x, places.y].map((all) => chosen.map((i) => all[i]));
    const at = instanceAt({ n: chosen.length, x: left, y: top, patch: places.patch }, x, y);
    if (at >= 0) change({ patch: chosen[at] });
  }

  show() {
    if (state.slice === null || !this.pairs) return;
    this.slider.value = state.slice + 1;
    this.slider.setAttribute("aria-valuetext", `slice ${state.slice + 1} of ${this.count}`);
    for (const strip of this.strips) strip.show(state.slice);
    const words = `Slice ${state.slice + 1} of ${this.count} · ${this.cut ? "highest patch · " : ""}${this.strips[0].words(state.slice)}`;
    this.words.textContent = words.replaceAll(" · ", "\n"); // next to the slice, not over it
    this.stage.setAttribute("aria-label", words);
    this.frame();
    if (this.scan) this.paint();
  }

  /** The slice's colour on the scale, as a frame around it: seen without hiding any pixel. */
  frame() {
    const [model, scores] = this.pairs[0];
    const how = howFor(model, scores);
    const score = scores.values[this.order[state.slice]];
    const hot = how.heat && score >= how.threshold;
    this.canvas.style.outlineColor = hot ? colourOf(score, how) : "transparent";
  }

  async paint() {
    const { rows, columns, windows } = this.scan;
    const [k, chosen] = [state.slice, windowOf(state.window, windows)];
    try {
      const hu = await sliceOf(this.opened.number, k, rows * columns);
      if (k !== state.slice) return;
      paintSlice(this.canvas, hu, rows, columns, windowOf(state.window, windows));
      this.canvas.dataset.painted = `${k}:${chosen.join("/")}`;
      this.fit();
      for (const near of [k + 1, k - 1, k + 2, k - 2]) {
        if (near >= 0 && near < this.count) sliceOf(this.opened.number, near, rows * columns).catch(() => {}); // reported when it is looked at
      }
    } catch (problem) {
      report(problem, () => this.show());
    }
  }

  /** As large as fits, in millimetres rather than pixels; then zoomed and moved by the reader. */
  fit() {
    if (!this.scan) return;
    const { rows, columns, spacing } = this.scan;
    const [high, wide] = [rows * (spacing?.[1] ?? 1), columns * (spacing?.[2] ?? 1)];
    const scale = Math.min((this.stage.clientWidth - 24) / wide, (this.stage.clientHeight - 24) / high);
    this.canvas.style.width = `${wide * scale}px`;
    this.canvas.style.height = `${high * scale}px`;
    this.canvas.style.transform = `translate(${this.moved[0]}px, ${this.moved[1]}px) scale(${this.factor})`;
    for (const side of ["width", "height", "transform"]) this.map.style[side] = this.canvas.style[side];
    this.paintMap();
  }

  /** Scores of the patches of this slice by the first model, the border of the lesion, and a frame around the chosen
   * patch. */
  paintMap() {
    if (!this.cut || !this.pairs || state.slice === null) return;
    const { places, truth } = this.opened;
    const [model, scores] = this.pairs[0];
    const [wide, high] = [parseFloat(this.map.style.width), parseFloat(this.map.style.height)];
    const pen = freshCanvas(this.map, wide, high);
    const view = { left: 0, top: 0, across: wide / this.scan.columns, down: high / this.scan.rows };
    const chosen = patchesOf(places, state.slice);
    paintOver(pen, sliceCells(places, chosen, scores.values, truth), view, howFor(model, scores));
    this.map.dataset.painted = state.slice;
    if (!chosen.includes(state.patch)) return;
    [pen.strokeStyle, pen.lineWidth] = ["#ff2e63", 3];
    const [x, y] = [places.x[state.patch] * view.across, places.y[state.patch] * view.down];
    pen.strokeRect(x, y, places.patch[0] * view.across, places.patch[1] * view.down);
  }

  wheel(event) {
    event.preventDefault();
    this.wheeled += event.deltaMode ? event.deltaY * WHEEL : event.deltaY;
    const steps = Math.trunc(this.wheeled / WHEEL);
    if (!steps) return;
    this.wheeled = 0;
    this.goToSlice(state.slice + Math.max(-3, Math.min(3, steps)));
  }

  keys(event) {
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 5, PageUp: -5, Home: -1e6, End: 1e6 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.goToSlice(state.slice + steps[event.key]);
  }

  drag(event) {
    if (this.factor === 1) return;
    this.moved = [this.moved[0] + event.movementX, this.moved[1] + event.movementY];
    this.fit();
  }

  zoom(factor) {
    this.factor = Math.max(1, Math.min(12, this.factor * factor));
    if (this.factor === 1) this.moved = [0, 0];
    this.fit();
  }

  whole() {
    [this.factor, this.moved] = [1, [0, 0]];
    this.fit();
  }

  closeStrips() {
    for (const strip of this.strips) strip.close();
  }

  close() {
    this.closeStrips();
    this.resized.disconnect();
  }
}
