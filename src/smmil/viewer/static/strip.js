// Scores in a row: one bar per slice above a band of truth, or instances from hottest to coldest.
import { rankOf } from "./cells.js";
import { facts } from "./facts.js";
import { aboveWords, colourOf, howFor } from "./how.js";
import { makeLegend, paintLegend } from "./layers.js";
import { labelWords, make, shortNumber } from "./words.js";

const BAND = 12;

export class Strip {
  /** `order[place]` is the instance at a place or undefined; `word` names a place; `choose` is called with a place. */
  constructor(host, opened, order, word, choose) {
    Object.assign(this, { opened, order, word, choose, current: null });
    const head = make("header");
    this.title = make("h3");
    this.legend = makeLegend();
    this.above = make("span", "above");
    head.append(this.title, this.above, this.legend);
    this.stage = make("div", "stage strip-stage");
    this.canvas = make("canvas", "bars");
    this.canvas.setAttribute("role", "img");
    this.readout = make("span", "pointed");
    this.stage.append(this.canvas, this.readout);
    host.append(head, this.stage);
    this.resized = new ResizeObserver(() => this.how && this.draw());
    this.resized.observe(this.stage);
    this.canvas.addEventListener("pointermove", (event) => this.read(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    this.canvas.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      if (place !== null) this.choose(place);
    });
  }

  setModel(model, scores) {
    Object.assign(this, { model, scores });
    this.title.textContent = facts.models[model].name;
    this.canvas.setAttribute("aria-label", `Scores of ${this.opened.entry.id} by ${facts.models[model].name}`);
  }

  show(current) {
    this.current = current;
    this.how = howFor(this.model, this.scores);
    this.above.textContent = aboveWords(this.scores.values, this.how.threshold);
    paintLegend(this.legend, this.how);
    this.draw();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    [this.canvas.width, this.canvas.height] = [width * ratio, height * ratio];
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colours = getComputedStyle(document.documentElement);
    this.ink = (name) => colours.getPropertyValue(name);
    const band = this.opened.truth && this.how.truth ? BAND + 4 : 0;
    this.area = { left: 56, right: width - 14, top: 8, bottom: height - 8 - band };
    this.wide = (this.area.right - this.area.left) / this.order.length;
    this.point(pen, height);
    this.order.forEach((instance, place) => instance !== undefined && this.bar(pen, instance, place, band));
    this.axis(pen, band, height);
  }

  level(score) {
    const share = (score - this.scores.low) / (this.scores.high - this.scores.low || 1);
    return this.area.bottom - (0.04 + 0.96 * share) * (this.area.bottom - this.area.top);
  }

  bar(pen, instance, place, band) {
    const score = this.scores.values[instance];
    const x = this.area.left + place * this.wide;
    const wide = Math.max(0.6, this.wide * 0.88);
    const shown = this.how.heat && score >= this.how.threshold;
    pen.fillStyle = shown ? colourOf(score, this.how) : this.ink("--tissue");
    pen.fillRect(x, this.level(score), wide, this.area.bottom - this.level(score));
    if (!band) return;
    pen.fillStyle = this.ink({ 0: "--tissue", 1: "--lesion" }[this.opened.truth[instance]] ?? "--unknown");
    pen.fillRect(x, this.area.bottom + 4, wide, BAND);
  }

  /** Where the reader is now. */
  point(pen, height) {
    if (this.current === null) return;
    const wide = Math.max(3, this.wide);
    const x = this.area.left + (this.current + 0.44) * this.wide - wide / 2;
    pen.fillStyle = this.ink("--accent");
    pen.globalAlpha = 0.28;
    pen.fillRect(x, 0, wide, height);
    pen.globalAlpha = 1;
    pen.fillRect(x, 0, wide, 3);
  }

  axis(pen, band, height) {
    pen.fillStyle = this.ink("--soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    for (const score of [this.scores.low, this.scores.high]) pen.fillText(shortNumber(score), this.area.left - 8, this.level(score) + 4);
    if (band) pen.fillText("truth", this.area.left - 8, height - 8);
    if (!(this.how.threshold > this.scores.low && this.how.threshold <= this.scores.high)) return;
    pen.strokeStyle = this.ink("--ink");
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(this.area.left, this.level(this.how.threshold));
    pen.lineTo(this.area.right, this.level(this.how.threshold));
    pen.stroke();
  }

  placeAt(event) {
    const place = Math.floor((event.offsetX - this.area.left) / this.wide);
    return place >= 0 && place < this.order.length ? place : null;
  }

  read(event) {
    const place = this.placeAt(event);
    this.readout.textContent = place === null ? "" : `${this.word} ${place + 1} · ${this.words(place)}`;
  }

  words(place) {
    const instance = this.order[place];
    if (instance === undefined) return "no score";
    const score = this.scores.values[instance];
    const label = this.opened.truth?.[instance] >= 0 ? ` · ${labelWords(this.opened.truth[instance])}` : "";
    return `score ${shortNumber(score)} · rank ${rankOf(this.scores.sorted, score)} of ${this.opened.info.instances}${label}`;
  }

  close() {
    this.resized.disconnect();
  }
}
