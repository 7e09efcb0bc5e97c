// A zoomable slide with layers of scores on top.
import { instanceAt, rankOf } from "./cells.js";
import { facts, refreshNotes } from "./facts.js";
import { aboveThreshold, howFor } from "./display_settings.js";
import { outlineOf, paintLayer, paintPaper } from "./layers.js";
import { makeLegend, paintLegend } from "./paint.js";
import { addressed, report } from "./server.js";
import { change, state } from "./state.js";
import { lengthText, make, roundedLength, scoreText, themeColour } from "./dom_helpers.js";
import { ZoomPane, around } from "./zoom_pane.js";

const FRAME = 9; // patches across the view after a jump
const HELD = 1000; // ms: a click may take its time
const WAIT = 300; // ms: tiles that fail together are asked about once

// OpenSeadragon would add a style element, which the page's policy forbids, unless it finds one with this mark. An
// element of that name that is no HTML has no style to forbid; view.css has its rules.
const mark = document.createElementNS("urn:smmil:mark", "style");
mark.setAttribute("data-openseadragon-mobile-css", "true");
document.head.append(mark);
// A slide that is left while its tiles are still on the way is no reason for a warning.
OpenSeadragon.console = Object.assign(Object.create(console), {
  warn: (text, ...rest) => String(text).startsWith("Ignoring tile") || console.warn(text, ...rest),
});

/** The rectangle the panes of a case show: the image, or what the instances cover. */
function worldOf({ info, places }) {
  if (!info.image) return around(places.extent);
  const [x, y] = info.image.origin ?? [0, 0];
  return { x, y, width: info.image.width, height: info.image.height };
}

function tilesOf({ number, info }, world) {
  if (!info.image) return { width: world.width, height: world.height, tileSize: 256, getTileUrl: () => "", tileExists: () => false };
  const { width, height, tile, levels } = info.image;
  const getTileUrl = (level, x, y) => addressed(`/tiles/${number}/${level}/${x}_${y}.jpg`);
  return { width, height, tileSize: tile, tileOverlap: 0, minLevel: Math.min(8, levels - 1), maxLevel: levels - 1, getTileUrl };
}

export class MapPane extends ZoomPane {
  constructor(host, opened) {
    super(worldOf(opened), opened.info.mpp ?? 1, opened.info.mpp ? "um" : "px");
    Object.assign(this, { host, opened });
    this.title = make("h3");
    this.legend = makeLegend();
    const head = make("header");
    this.kind = make("span", "score-kind");
    head.append(this.title, this.kind, this.legend);
    this.readout = make("span");
    this.above = make("span", "above");
    const foot = make("p", "readout");
    foot.append(this.readout, this.above);
    host.append(head, this.stage, foot);
    this.layers = this.makeLayers();
    this.marker = make("div", "marker");
    const options = { clickTimeThreshold: HELD, maxZoomPixelRatio: 8, gestureSettingsTouch: { clickToZoom: false } };
    this.open(tilesOf(opened, this.world), "", options, () => this.lay());
    this.listen();
  }

  /** Everything that lies on the slide, in the order in which it covers: paper, scores, other layers, truth. */
  makeLayers() {
    const { places, truth, info } = this.opened;
    const layers = make("div", "cover");
    this.paper = make("canvas", "paper");
    this.heat = make("canvas", "heat");
    this.more = make("div", "more");
    this.truth = make("div", "outline");
    if (!info.image) layers.append(this.paper);
    if (truth) {
      const known = Float32Array.from(truth, (label) => (label < 0 ? NaN : label));
      this.truth.append(outlineOf(places, known, (share) => share > 0.5));
    }
    layers.append(this.heat, this.more, this.truth);
    return layers;
  }

  listen() {
    this.viewer.addHandler("canvas-click", (event) => event.quick && this.pick(event.position));
    this.viewer.addHandler("canvas-key", (event) => {
      if (event.originalEvent.key === "Enter") this.pick(this.viewer.viewport.getContainerSize().divide(2));
    });
    this.viewer.addHandler("animation-finish", () => change({ view: this.view() }));
    this.viewer.addHandler("tile-load-failed", () => {
      clearTimeout(this.missing);
      this.missing = setTimeout(() => this.missed(), WAIT);
    });
  }

  /** Tiles did not come: the server knows why, or is gone, or is another one by now. */
  async missed() {
    try {
      await refreshNotes(this.opened);
      change({ refreshed: state.refreshed + 1 });
    } catch (problem) {
      report(problem, () => this.missed());
    }
  }

  loaded() {
    return !this.opened.info.image || super.loaded();
  }

  lay() {
    this.cover(this.layers, this.opened.places.extent);
    this.cover(this.marker, [0, 0, 1, 1]);
  }

  setModel(model, scores) {
    Object.assign(this, { model, scores });
    this.title.textContent = facts.models[model].name;
    this.kind.textContent = facts.models[model].score_kind;
    this.label(`Map of ${this.opened.entry.id} by ${facts.models[model].name}`);
  }

  /** Paint everything from the reader's choices. `extras`: [model, scores, {as, opacity}] of further layers. */
  show(extras) {
    const { places, info } = this.opened;
    const how = howFor(this.model, this.scores);
    paintLayer(this.heat, places, this.scores, how);
    this.heat.style.opacity = how.heat ? how.opacity : 0;
    this.truth.style.visibility = how.truth ? "visible" : "hidden";
    if (!info.image) this.paintPaper();
    this.more.replaceChildren(...extras.map((extra) => this.extra(...extra)));
    this.above.textContent = aboveThreshold(this.scores.values, how.threshold);
    paintLegend(this.legend, how, places.dots ? null : lengthText(roundedLength(places.step[0] * this.spacing), this.unit));
    this.mark(state.patch);
  }

  /** Once for each theme: it does not change with the scores. */
  paintPaper() {
    const colour = themeColour("--tissue");
    if (colour !== this.paper.dataset.colour) paintPaper(this.paper, this.opened.places, colour);
    this.paper.dataset.colour = colour;
  }

  extra(model, scores, layer) {
    const how = howFor(model, scores);
    if (layer.as === "line" && !this.opened.places.dots) {
      const line = make("div", `outline layer m${model % 6}`);
      const cut = Number.isFinite(how.threshold) ? how.threshold : scores.colours[1];
      line.append(outlineOf(this.opened.places, scores.values, (score) => score >= cut));
      line.style.opacity = layer.opacity;
      return line;
    }
    const canvas = make("canvas", "heat-layer");
    paintLayer(canvas, this.opened.places, scores, how);
    canvas.style.opacity = layer.opacity;
    return canvas;
  }

  mark(instance) {
    this.marker.hidden = instance === null;
    if (instance === null) return;
    const { x, y, patch } = this.opened.places;
    this.viewer.updateOverlay(this.marker, this.rect(x[instance], y[instance], x[instance] + patch[0], y[instance] + patch[1]));
  }

  instanceNear([x, y]) {
    return instanceAt(this.opened.places, x, y, this.opened.places.dots ? 8 * this.unitsPerPixel() : 0);
  }

  pick(pixel) {
    const instance = this.instanceNear(this.placeOf(pixel));
    change({ patch: instance < 0 ? null : instance });
  }

  read(event) {
    const i = this.instanceNear(this.placeUnder(event));
    const { truth, places } = this.opened;
    const score = this.scores.values[i];
    this.readout.textContent = i < 0 ? "" : scoreText(score, rankOf(this.scores.sorted, score), places.n, truth ? truth[i] : -1);
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

  /** Arrows move the view by a tenth of it. */
  keys(event) {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const { width, height } = this.viewer.viewport.getBounds();
    this.viewer.viewport.panBy(new OpenSeadragon.Point((by[0] * width) / 10, (by[1] * height) / 10));
    this.viewer.viewport.applyConstraints();
  }

  /** Bring a patch into the middle, near enough to be recognised. */
  goTo(instance) {
    const { x, y, patch } = this.opened.places;
    const now = this.viewer.viewport.getBounds().width * this.world.width;
    this.setView([x[instance] + patch[0] / 2, y[instance] + patch[1] / 2, Math.min(now, FRAME * 2 * patch[0])].join(","), false);
  }

  close() {
    clearTimeout(this.missing);
    super.close();
  }
}
