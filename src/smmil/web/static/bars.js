// Scores in a row: one bar per place above a band of truth.
import { colourOf, freshCanvas } from "./paint.js";
import { make, shortNumber, themeColour } from "./dom_helpers.js";

export class BarStrip {
  /** layout: pixels above and below the bars, height of the band of truth and its distance, shares of the score axis that
   * are labelled, and whether bars fade with the opacity. Subclasses set `series` ({values, low, high, labels}, by
   * instance) and `places` (instance at each place, or undefined). */
  constructor(className, layout) {
    Object.assign(this, { layout, from: 0 });
    this.stage = make("div", `stage ${className}`);
    this.canvas = make("canvas", "bars");
    this.canvas.setAttribute("role", "img");
    this.stage.append(this.canvas);
    this.resized = new ResizeObserver(() => this.how && this.draw());
    this.resized.observe(this.stage);
    this.canvas.addEventListener("pointermove", (event) => this.read(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
  }

  draw() {
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    const pen = freshCanvas(this.canvas, width, height);
    const { top, below, band, gap } = this.layout;
    this.banded = Boolean(this.series.labels && this.how.truth);
    this.area = { left: 56, right: width - 14, top, bottom: height - below - (this.banded ? band + gap : 0) };
    const span = this.span ?? this.places.length;
    this.wide = (this.area.right - this.area.left) / span;
    this.drawBelow(pen, height);
    this.places.slice(this.from, this.from + span).forEach((instance, i) => {
      if (!Number.isNaN(this.series.values[instance] ?? NaN)) this.bar(pen, instance, this.area.left + i * this.wide);
    });
    this.axis(pen);
    this.line(pen);
    this.drawAbove(pen, height);
  }

  drawBelow() {}

  drawAbove() {}

  /** Middle of the bar of a place. */
  middle(place) {
    return this.area.left + (place - this.from + 0.45) * this.wide;
  }

  level(score) {
    const { low, high } = this.series;
    return this.area.bottom - (0.04 + (0.96 * (score - low)) / (high - low || 1)) * (this.area.bottom - this.area.top);
  }

  bar(pen, instance, x) {
    const score = this.series.values[instance];
    const wide = Math.max(0.6, this.wide * 0.9);
    const shown = this.how.heat && score >= this.how.threshold;
    pen.globalAlpha = shown && this.layout.fades ? this.how.opacity : 1;
    pen.fillStyle = shown ? colourOf(score, this.how) : themeColour("--tissue");
    pen.fillRect(x, this.level(score), wide, this.area.bottom - this.level(score));
    pen.globalAlpha = 1;
    if (!this.banded) return;
    pen.fillStyle = themeColour({ 0: "--tissue", 1: "--lesion" }[this.series.labels[instance]] ?? "--unknown");
    pen.fillRect(x, this.area.bottom + this.layout.gap, wide, this.layout.band);
  }

  axis(pen) {
    const { low, high } = this.series;
    pen.fillStyle = themeColour("--soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    for (const share of this.layout.labelled) {
      const score = low + share * (high - low);
      pen.fillText(shortNumber(score), this.area.left - 8, this.level(score) + 4);
    }
    if (this.banded) pen.fillText("truth", this.area.left - 8, this.area.bottom + this.layout.gap + 12);
  }

  /** The threshold. */
  line(pen) {
    if (!(this.how.threshold > this.series.low && this.how.threshold <= this.series.high)) return;
    pen.strokeStyle = themeColour("--ink");
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(this.area.left, this.level(this.how.threshold));
    pen.lineTo(this.area.right, this.level(this.how.threshold));
    pen.stroke();
  }

  /** The place under the pointer, null outside. */
  placeAt(event) {
    const place = this.from + Math.floor((event.offsetX - this.area.left) / this.wide);
    return event.offsetX >= this.area.left && event.offsetX < this.area.right && place < this.places.length ? place : null;
  }

  close() {
    this.resized.disconnect();
  }
}
