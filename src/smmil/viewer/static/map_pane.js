// A zoomable slide with layers of scores on top. Places: level-0 pixels; OpenSeadragon's unit is the world's width.
import { instanceAt, rankOf } from "./cells.js";
import { facts, hearAgain } from "./facts.js";
import { aboveWords, howFor } from "./how.js";
import { makeLegend, makeScaleBar, outlineOf, paintLayer, paintLegend, paintPaper } from "./layers.js";
import { addressed, tell } from "./server.js";
import { change, state } from "./state.js";
import { labelWords, lengthWords, make, roundLength, shortNumber } from "./words.js";

const FRAME = 9; // patches across the view after a jump
const HELD = 1000; // ms: a click may take its time
const WAIT = 300; // ms: tiles that fail together are asked about once

// OpenSeadragon would add a style element, which the page's policy forbids, unless it finds one with this mark. An
// element of that name that is no HTML has no style to forbid; view.css says what it would have said.
const mark = document.createElementNS("urn:smmil:mark", "style");
mark.setAttribute("data-openseadragon-mobile-css", "true");
document.head.append(mark);
// A slide that is left while its tiles are still on the way is no reason for a warning.
OpenSeadragon.console = Object.assign(Object.create(console), {
  warn: (text, ...rest) => String(text).startsWith("Ignoring tile") || console.warn(text, ...rest),
});

/** The rectangle the panes of a case show: the image, or what the instances cover. */
function worldOf({ info, places }) {
  if (info.image) {
    const [x, y] = info.image.origin ?? [0, 0];
    return { x, y, width: info.image.width, height: info.image.height };
  }
  const [left, top, right, bottom] = places.extent;
  const margin = 0.04 * Math.max(right - left, bottom - top);
  return { x: left - margin, y: top - margin, width: right - left + 2 * margin, height: bottom - top + 2 * margin };
}

function tilesOf({ number, info }, world) {
  if (!info.image) return { width: world.width, height: world.height, tileSize: 256, getTileUrl: () => "", tileExists: () => false };
  const { width, height, tile, levels } = info.image;
  const getTileUrl = (level, x, y) => addressed(`/tiles/${number}/${level}/${x}_${y}.jpg`);
  return { width, height, tileSize: tile, tileOverlap: 0, minLevel: Math.min(8, levels - 1), maxLevel: levels - 1, getTileUrl };
}

export class MapPane {
  constructor(host, opened) {
    Object.assign(this, { host, opened, world: worldOf(opened), extras: new Map() });
    this.title = make("h3");
    this.legend = makeLegend();
    const head = make("header");
    head.append(this.title, this.legend);
    this.stage = make("div", "stage");
    this.bar = makeScaleBar();
    this.readout = make("span");
    this.above = make("span", "above");
    const foot = make("p", "readout");
    foot.append(this.readout, this.above);
    host.append(head, this.stage, foot);
    this.cover = this.layCover();
    this.marker = make("div", "marker");
    this.viewer = this.open();
    this.ready = new Promise((done) => this.viewer.addOnceHandler("open", () => { this.place(); done(); }));
    this.stage.append(this.bar);
    this.stage.addEventListener("pointermove", (event) => this.read(event));
    this.stage.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
  }

  /** Everything that lies on the slide, in the order in which it covers: paper, scores, other layers, truth. */
  layCover() {
    const { places, truth, info } = this.opened;
    const cover = make("div", "cover");
    this.paper = make("canvas", "paper");
    this.heat = make("canvas", "heat");
    this.more = make("div", "more");
    this.truth = make("div", "outline");
    if (!info.image) cover.append(this.paper);
    if (truth) {
      const known = Float32Array.from(truth, (label) => (label < 0 ? NaN : label));
      this.truth.append(outlineOf(places, known, (share) => share > 0.5, ["under", "over"]));
    }
    cover.append(this.heat, this.more, this.truth);
    return cover;
  }

  open() {
    const viewer = OpenSeadragon({
      element: this.stage, tileSources: tilesOf(this.opened, this.world), drawer: "canvas", showNavigationControl: false,
      animationTime: 0.35, clickTimeThreshold: HELD, maxZoomPixelRatio: 8, minZoomImageRatio: 0.5, visibilityRatio: 0.2,
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true }, gestureSettingsTouch: { clickToZoom: false },
    });
    viewer.addHandler("canvas-click", (event) => event.quick && this.pick(event.position));
    // turning and mirroring would leave the layers behind; Enter stands for a click in the middle
    viewer.addHandler("canvas-key", (event) => {
      if ("rf".includes(event.originalEvent.key.toLowerCase())) event.preventDefaultAction = true;
      if (event.originalEvent.key === "Enter") this.pick(this.middle());
    });
    for (const happening of ["animation", "resize", "open"]) viewer.addHandler(happening, () => this.measure());
    viewer.addHandler("animation-start", () => this.settle(true));
    viewer.addHandler("animation-finish", () => { this.settle(false); change({ view: this.view() }); });
    viewer.addHandler("tile-load-failed", () => {
      clearTimeout(this.missing);
      this.missing = setTimeout(() => this.missed(), WAIT);
    });
    return viewer;
  }

  /** Tiles did not come: the server knows why, or is gone, or is another one by now. */
  async missed() {
    try {
      await hearAgain(this.opened);
      change({ heard: state.heard + 1 });
    } catch (problem) {
      tell(problem, () => this.missed());
    }
  }

  /** The stage is busy while it moves or waits for pixels. */
  settle(moving) {
    this.moving = moving;
    const loaded = !this.opened.info.image || this.viewer.world.getItemAt(0)?.getFullyLoaded();
    this.stage.setAttribute("aria-busy", moving || !loaded);
  }

  place() {
    this.viewer.addOverlay({ element: this.cover, location: this.rect(...this.opened.places.extent) });
    this.viewer.addOverlay({ element: this.marker, location: this.rect(0, 0, 1, 1) });
    this.viewer.world.getItemAt(0).addHandler("fully-loaded-change", () => this.settle(this.moving));
    this.settle(false);
    this.measure();
  }

  rect(left, top, right, bottom) {
    const unit = this.world.width;
    return new OpenSeadragon.Rect((left - this.world.x) / unit, (top - this.world.y) / unit, (right - left) / unit, (bottom - top) / unit);
  }

  setModel(model, scores) {
    Object.assign(this, { model, scores });
    this.title.textContent = facts.models[model].name;
    this.viewer.canvas.setAttribute("aria-label", `Map of ${this.opened.entry.id} by ${facts.models[model].name}`);
  }

  /** Paint everything anew from the reader's choices. `extras`: [model, scores, {as, opacity}] of further layers. */
  show(extras) {
    const { places, info } = this.opened;
    const how = howFor(this.model, this.scores);
    paintLayer(this.heat, places, this.scores, how);
    this.heat.style.opacity = how.heat ? how.opacity : 0;
    this.truth.style.visibility = how.truth ? "visible" : "hidden";
    if (!info.image) this.paintPaper();
    this.more.replaceChildren(...extras.map(([model, scores, wish]) => this.extra(model, scores, wish)));
    this.above.textContent = aboveWords(this.scores.values, how.threshold);
    paintLegend(this.legend, how);
    this.mark(state.patch);
  }

  /** Once for each theme: it does not change with the scores. */
  paintPaper() {
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--tissue");
    if (colour !== this.paper.dataset.colour) paintPaper(this.paper, this.opened.places, colour);
    this.paper.dataset.colour = colour;
  }

  extra(model, scores, wish) {
    const how = howFor(model, scores);
    if (wish.as === "line" && !this.opened.places.dots) {
      const line = make("div", `outline layer m${model % 6}`);
      const cut = Number.isFinite(how.threshold) ? how.threshold : scores.colours[1];
      line.append(outlineOf(this.opened.places, scores.values, (score) => score >= cut, ["under", "over"]));
      line.style.opacity = wish.opacity;
      return line;
    }
    const canvas = make("canvas", "heat-layer");
    paintLayer(canvas, this.opened.places, scores, how);
    canvas.style.opacity = wish.opacity;
    return canvas;
  }

  mark(instance) {
    this.marker.hidden = instance === null;
    if (instance === null) return;
    const { x, y, patch } = this.opened.places;
    this.viewer.updateOverlay(this.marker, this.rect(x[instance], y[instance], x[instance] + patch[0], y[instance] + patch[1]));
  }

  /** A bar of a round length for the present zoom. */
  measure() {
    const perPixel = (this.world.width * this.viewer.viewport.getBounds(true).width) / this.viewer.viewport.getContainerSize().x;
    const spacing = this.opened.info.mpp ?? 1;
    const length = roundLength(perPixel * 120 * spacing);
    this.bar.style.width = `${length / spacing / perPixel}px`;
    this.bar.firstChild.textContent = lengthWords(length, this.opened.info.mpp);
  }

  middle() {
    return this.viewer.viewport.getContainerSize().divide(2);
  }

  instanceUnder(pixel) {
    const point = this.viewer.viewport.pointFromPixel(pixel, true).times(this.world.width);
    const slack = this.opened.places.dots ? (8 * this.world.width * this.viewer.viewport.getBounds(true).width) / this.stage.clientWidth : 0;
    return instanceAt(this.opened.places, point.x + this.world.x, point.y + this.world.y, slack);
  }

  pick(pixel) {
    const instance = this.instanceUnder(pixel);
    change({ patch: instance < 0 ? null : instance });
  }

  read(event) {
    const box = this.stage.getBoundingClientRect();
    const i = this.instanceUnder(new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top));
    const { truth, places } = this.opened;
    const score = this.scores.values[i];
    const label = truth && truth[i] >= 0 ? ` · ${labelWords(truth[i])}` : "";
    this.readout.textContent = i < 0 ? "" : `score ${shortNumber(score)} · rank ${rankOf(this.scores.sorted, score)} of ${places.n}${label}`;
  }

  /** Middle and width of what is seen, in level-0 pixels: enough to come back here. Nothing for the whole case. */
  view() {
    if (this.viewer.viewport.getZoom() <= this.viewer.viewport.getHomeZoom() * 1.01) return null;
    const bounds = this.viewer.viewport.getBounds();
    const unit = this.world.width;
    return [(bounds.x + bounds.width / 2) * unit + this.world.x, (bounds.y + bounds.height / 2) * unit + this.world.y, bounds.width * unit]
      .map(Math.round).join(",");
  }

  setView(view, immediately = true) {
    const [x, y, width] = (view ?? "").split(",").map(Number);
    if (!(Number.isFinite(x) && Number.isFinite(y) && width > 0)) return;
    this.viewer.viewport.fitBounds(this.rect(x - width / 2, y - width / 2e3, x + width / 2, y + width / 2e3), immediately);
  }

  /** Bring a patch into the middle, near enough to be recognised. */
  goTo(instance) {
    const { x, y, patch } = this.opened.places;
    const now = this.viewer.viewport.getBounds().width * this.world.width;
    this.setView([x[instance] + patch[0] / 2, y[instance] + patch[1] / 2, Math.min(now, FRAME * 2 * patch[0])].join(","), false);
  }

  zoom(factor) {
    this.viewer.viewport.zoomBy(factor);
  }

  whole() {
    this.viewer.viewport.goHome();
  }

  close() {
    clearTimeout(this.missing);
    this.viewer.destroy();
  }
}
