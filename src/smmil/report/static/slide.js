// A zoomable slide with its heat map on top. Coordinates: level-0 pixels; OpenSeadragon's unit is the world's width.
const SVG = "http://www.w3.org/2000/svg";

/** The rectangle that all panes of a case show, so that their zooms can be linked. */
function worldOf(number) {
  const entry = DATA.cases[number];
  const extents = entry.said.filter((s) => s && isFlat(s.raster)).map((s) => s.raster.extent);
  const left = Math.min(...extents.map((e) => e[0]));
  const top = Math.min(...extents.map((e) => e[1]));
  const right = Math.max(...extents.map((e) => e[2]));
  const bottom = Math.max(...extents.map((e) => e[3]));
  if (entry.picture) {
    const [x, y, width, height] = entry.picture;
    return { x, y, width, height };
  }
  const margin = 0.04 * Math.max(right - left, bottom - top);
  return { x: left - margin, y: top - margin, width: right - left + 2 * margin, height: bottom - top + 2 * margin };
}

/** Whether a raster lies in the plane of a slide, as tiles or as dots. */
function isFlat(raster) {
  return raster.kind === "map" || raster.kind === "points";
}

class SlidePane {
  constructor(host, number, model, cells) {
    Object.assign(this, { number, model, cells, world: worldOf(number) });
    this.stage = make("div", "stage");
    this.bar = make("div", "scale-bar");
    this.bar.append(make("span")); // beside it: however short the bar gets, the words are never wider than it
    this.readout = make("p", "readout");
    host.append(this.stage, this.readout);
    this.heat = make("canvas", "heat");
    this.outline = make("div", "outline");
    this.drawOutline();
    this.viewer = this.open();
    this.ready = new Promise((done) => this.viewer.addOnceHandler("open", () => { this.cover(); this.watch(); done(); }));
    this.stage.append(this.bar);
    this.stage.addEventListener("pointermove", (event) => this.read(event));
    this.stage.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
  }

  open() {
    const picture = pictureOf(this.number);
    const url = picture || this.base().toDataURL("image/png");
    const viewer = OpenSeadragon({
      element: this.stage,
      tileSources: { type: "image", url, buildPyramid: false },
      drawer: "canvas",
      showNavigationControl: false,
      animationTime: 0.35,
      maxZoomPixelRatio: 60,
      minZoomImageRatio: 0.5,
      visibilityRatio: 0.2,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
    });
    viewer.canvas.setAttribute("aria-label", `Map of ${DATA.cases[this.number].id} by ${DATA.models[this.model].name}`);
    // turning and mirroring would leave the outline behind
    viewer.addHandler("canvas-key", (event) => {
      if ("rf".includes(event.originalEvent.key.toLowerCase())) event.preventDefaultAction = true;
    });
    for (const change of ["animation", "resize", "open"]) viewer.addHandler(change, () => this.measure());
    viewer.addHandler("animation-start", () => this.settle(true));
    viewer.addHandler("animation-finish", () => this.settle(false));
    return viewer;
  }

  watch() {
    this.viewer.world.getItemAt(0).addHandler("fully-loaded-change", () => this.settle(this.moving));
    this.settle(false);
  }

  /** The stage is busy while it moves or waits for its picture. */
  settle(moving) {
    this.moving = moving;
    this.stage.setAttribute("aria-busy", moving || !this.viewer.world.getItemAt(0)?.getFullyLoaded());
  }

  /** What lies below the map when there is no picture of the slide. */
  base() {
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--tissue").trim();
    return paintTissue(this.cells, this.world, paper);
  }

  /** Heat map and outline lie where their cells are. */
  cover() {
    const [left, top, right, bottom] = this.cells.extent;
    const unit = this.world.width;
    const place = new OpenSeadragon.Rect(
      (left - this.world.x) / unit, (top - this.world.y) / unit, (right - left) / unit, (bottom - top) / unit,
    );
    this.viewer.addOverlay({ element: this.heat, location: place });
    this.viewer.addOverlay({ element: this.outline, location: place });
    this.measure();
  }

  drawOutline() {
    if (!this.cells.truth) return;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${this.cells.columns} ${this.cells.rows}`);
    svg.setAttribute("preserveAspectRatio", "none");
    const shape = truthPath(this.cells);
    for (const kind of ["under", "over"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", kind);
      path.setAttribute("d", shape);
      svg.append(path);
    }
    this.outline.append(svg);
  }

  show(how) {
    this.shown = paintHeat(this.heat, this.cells, how.limits, how.palette, how.threshold);
    this.heat.style.opacity = how.heat ? how.opacity : 0;
    this.outline.style.visibility = how.truth ? "visible" : "hidden";
  }

  /** A bar of a round length for the present zoom. */
  measure() {
    const pixels = this.viewer.viewport.getContainerSize().x;
    const perPixel = (this.world.width * this.viewer.viewport.getBounds(true).width) / pixels;
    const entry = DATA.cases[this.number];
    const about = perPixel * 120 * (entry.spacing || 1);
    const power = 10 ** Math.floor(Math.log10(about));
    const length = [5, 2, 1].map((f) => f * power).find((v) => v <= about);
    this.bar.style.width = `${length / (entry.spacing || 1) / perPixel}px`;
    this.bar.firstChild.textContent = lengthWords(length, entry.unit);
  }

  read(event) {
    const box = this.stage.getBoundingClientRect();
    const pixel = new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top);
    const point = this.viewer.viewport.pointFromPixel(pixel, true);
    const [left, top, right, bottom] = this.cells.extent;
    const column = Math.floor(((point.x * this.world.width + this.world.x - left) / (right - left)) * this.cells.columns);
    const row = Math.floor(((point.y * this.world.width + this.world.y - top) / (bottom - top)) * this.cells.rows);
    const outside = column < 0 || row < 0 || column >= this.cells.columns || row >= this.cells.rows;
    this.readout.textContent = outside ? "" : cellWords(this.cells, row * this.cells.columns + column);
  }

  zoom(factor) {
    this.viewer.viewport.zoomBy(factor);
  }

  whole() {
    this.viewer.viewport.goHome();
  }

  close() {
    this.viewer.destroy();
  }
}

/** What the pane under the hand shows, the other shows too. Only one leads, or the two would hold each other back. */
function linkZoom(one, other) {
  one.leads = true;
  for (const [from, to] of [[one, other], [other, one]]) {
    const lead = () => { [from.leads, to.leads] = [true, false]; };
    const follow = () => {
      if (!from.leads) return;
      to.viewer.viewport.zoomTo(from.viewer.viewport.getZoom(true), null, true);
      to.viewer.viewport.panTo(from.viewer.viewport.getCenter(true), true);
    };
    for (const touch of ["pointerenter", "pointerdown", "wheel", "keydown"]) from.stage.addEventListener(touch, lead, true);
    from.viewer.addHandler("animation", follow);
    from.viewer.addHandler("animation-finish", follow);
  }
}

function lengthWords(length, unit) {
  if (unit === "um") return length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
  return `${length.toLocaleString("en")} ${unit}`;
}

function cellWords(cells, cell) {
  const score = cells.scores[cell];
  if (Number.isNaN(score)) return "no tissue";
  let above = 0;
  for (const other of cells.scores) above += other > score;
  const truth = !cells.truth || cells.known[cell] === UNKNOWN_TRUTH ? "" : cells.known[cell] === 1 ? " · lesion" : " · no lesion";
  return `score ${shortNumber(score)} · rank ${above + 1} of ${cells.cells}${truth}`;
}
