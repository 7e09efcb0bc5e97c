// A zoomable slide with dots on top. Dots keep a visible size on the screen, so they are drawn anew for every view.
class PointsPane extends SlidePane {
  /** Canvases of the size of the stage: places without a colour, scores, rings of the truth. */
  cover() {
    this.places = make("canvas", "dots");
    this.heat.className = "heat dots";
    this.rings = make("canvas", "dots outline");
    this.bar.before(this.places, this.heat, this.rings);
    this.measure();
  }

  drawOutline() {} // rings, see draw

  base() {
    const canvas = document.createElement("canvas");
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
    const hot = this.cells.order.filter((i) => this.cells.scores[i] >= this.how.threshold);
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    const below = this.fresh(this.places, view);
    if (!pictureOf(this.number)) paintDots(below, this.cells, view, this.cells.order, () => paper);
    paintDots(this.fresh(this.heat, view), this.cells, view, hot, shader(this.cells, this.how.limits, this.how.palette));
    const rings = this.fresh(this.rings, view);
    if (this.cells.truth && this.how.truth) paintRings(rings, this.cells, view);
  }

  fresh(canvas, view) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(view.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return pen;
  }

  /** The nearest dot under the hand. */
  read(event) {
    const box = this.stage.getBoundingClientRect();
    const view = this.view();
    const [x, y] = [view.left + (event.clientX - box.left) / view.scale, view.top + (event.clientY - box.top) / view.scale];
    let [best, nearest] = [-1, (dotRadius(this.cells, view) + 2) / view.scale];
    for (let i = 0; i < this.cells.cells; i++) {
      const distance = Math.hypot(this.cells.x[i] - x, this.cells.y[i] - y);
      if (distance < nearest) [best, nearest] = [i, distance];
    }
    this.readout.textContent = best < 0 ? "" : cellWords(this.cells, best);
  }
}
