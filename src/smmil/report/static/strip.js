// A scan as a strip: one bar per slice above a band of truth. Without coordinates: instances from hottest to coldest.
class StripPane {
  constructor(host, number, model, cells) {
    Object.assign(this, { number, model, cells, from: 0 });
    this.stage = make("div", "stage strip");
    this.canvas = make("canvas", "bars");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Scores of ${DATA.cases[number].id} by ${DATA.models[model].name}`);
    this.readout = make("p", "readout");
    this.stage.append(this.canvas);
    const row = make("div", "strip-row");
    row.append(this.stage);
    host.append(row);
    this.places = this.order();
    this.span = this.places.length;
    this.picture = cells.kind === "strip" && DATA.cases[number].slices ? new SliceView(row, number) : null;
    host.append(this.readout);
    this.ready = this.picture ? this.picture.ready : Promise.resolve();
    this.chosen = cells.scores.reduce((best, score, i) => (score > (cells.scores[best] ?? -Infinity) ? i : best), -1);
    this.resized = new ResizeObserver(() => this.how && this.draw());
    this.resized.observe(this.stage);
    this.canvas.addEventListener("pointermove", (event) => this.read(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("keydown", (event) => this.keys(event));
  }

  order() {
    const places = [...this.cells.scores.keys()];
    return this.cells.kind === "strip" ? places : places.sort((a, b) => this.cells.scores[b] - this.cells.scores[a]);
  }

  show(how) {
    this.how = how;
    this.shown = this.cells.scores.reduce((count, score) => count + (score >= how.threshold), 0);
    this.draw();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.stage.clientWidth, this.stage.clientHeight];
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colours = getComputedStyle(document.documentElement);
    const band = this.cells.truth && this.how.truth ? 22 : 0;
    this.area = { left: 56, right: width - 14, top: 16, bottom: height - 40 - band };
    this.axis(pen, colours, band);
    const wide = (this.area.right - this.area.left) / this.span;
    this.places.slice(this.from, this.from + this.span).forEach((cell, i) => {
      if (Number.isNaN(this.cells.scores[cell])) return;
      const x = this.area.left + i * wide;
      this.bar(pen, cell, x, Math.max(0.6, wide * 0.9), colours);
      if (band) this.mark(pen, cell, x, Math.max(0.6, wide * 0.9), height - 30 - band, colours);
    });
    this.line(pen, colours);
    this.showSlice(pen, colours);
  }

  /** The chosen slice: hottest at first, then the one under the hand; a mark below its bar says which it is. */
  showSlice(pen, colours) {
    if (!this.picture) return;
    const place = this.places.indexOf(this.chosen);
    this.picture.show(Math.round(this.name(place)), this.words(place));
    if (place < this.from || place >= this.from + this.span) return;
    const wide = (this.area.right - this.area.left) / this.span;
    const x = this.area.left + (place - this.from + 0.45) * wide;
    pen.fillStyle = colours.getPropertyValue("--ink");
    pen.beginPath();
    pen.moveTo(x, this.area.bottom + 1);
    pen.lineTo(x - 5, this.area.bottom + 8);
    pen.lineTo(x + 5, this.area.bottom + 8);
    pen.fill();
  }

  words(i) {
    return `${this.cells.kind === "strip" ? "slice" : "instance"} ${this.label(i)} · ${cellWords(this.cells, this.places[i])}`;
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

  level(score) {
    const share = (score - this.cells.low) / (this.cells.high - this.cells.low || 1);
    return this.area.bottom - (0.04 + 0.96 * share) * (this.area.bottom - this.area.top);
  }

  bar(pen, cell, x, wide, colours) {
    const score = this.cells.scores[cell];
    const c = colourIndex(score, this.how.limits) * 3;
    const [r, g, b] = this.how.palette.slice(c, c + 3);
    const shown = this.how.heat && score >= this.how.threshold;
    pen.globalAlpha = shown ? this.how.opacity : 1;
    pen.fillStyle = shown ? `rgb(${r},${g},${b})` : colours.getPropertyValue("--tissue");
    pen.fillRect(x, this.level(score), wide, this.area.bottom - this.level(score));
    pen.globalAlpha = 1;
  }

  mark(pen, cell, x, wide, y, colours) {
    const kind = { 0: "--tissue", 1: "--lesion", 2: "--unknown" }[this.cells.known[cell]];
    pen.fillStyle = colours.getPropertyValue(kind);
    pen.fillRect(x, y, wide, 16);
  }

  axis(pen, colours, band) {
    pen.fillStyle = colours.getPropertyValue("--soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    for (const score of [this.cells.low, (this.cells.low + this.cells.high) / 2, this.cells.high]) {
      pen.fillText(shortNumber(score), this.area.left - 8, this.level(score) + 4);
    }
    if (band) pen.fillText("truth", this.area.left - 8, this.stage.clientHeight - 18 - band);
    pen.textAlign = "center";
    const words = this.cells.kind === "strip" ? "slices" : "instances, hottest first";
    const [first, last] = [this.label(this.from), this.label(this.from + this.span - 1)];
    pen.fillText(`${words}: ${first} to ${last}`, (this.area.left + this.area.right) / 2, this.stage.clientHeight - 10);
  }

  name(i) {
    if (this.cells.kind !== "strip") return i + 1;
    const [left, , right] = this.cells.extent;
    return Math.round((left + ((right - left) * this.places[i]) / this.cells.columns) * 100) / 100;
  }

  /** How the reader counts: slices from 1, as in the viewer; coordinates that count none are told as they are. */
  label(i) {
    const [left, , right] = this.cells.extent;
    const counted = this.cells.kind === "strip" && Number.isInteger(left) && right - left === this.cells.columns;
    return counted ? this.name(i) + 1 : this.name(i);
  }

  line(pen, colours) {
    if (!(this.how.threshold > this.cells.low && this.how.threshold <= this.cells.high)) return;
    pen.strokeStyle = colours.getPropertyValue("--ink");
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(this.area.left, this.level(this.how.threshold));
    pen.lineTo(this.area.right, this.level(this.how.threshold));
    pen.stroke();
  }

  read(event) {
    const share = (event.offsetX - this.area.left) / (this.area.right - this.area.left);
    const i = this.from + Math.floor(share * this.span);
    const there = share >= 0 && share < 1 && i < this.places.length;
    this.readout.textContent = there ? this.words(i) : "";
    if (there && this.chosen !== this.places[i]) chooseSlice(this.name(i));
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

  close() {
    this.resized.disconnect();
  }
}

/** The same slice in all panes. */
function chooseSlice(name) {
  for (const pane of shown.panes) if (pane instanceof StripPane) pane.choose(name);
}
