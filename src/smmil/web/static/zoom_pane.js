// A zoomable picture with overlays and a scale bar. Places: level-0 pixels; OpenSeadragon's unit is the world's width.
import { lengthText, make, roundLength } from "./dom_helpers.js";

/** The rectangle around what lies on the picture, with a margin. */
export function around([left, top, right, bottom]) {
  const margin = 0.04 * Math.max(right - left, bottom - top);
  return { x: left - margin, y: top - margin, width: right - left + 2 * margin, height: bottom - top + 2 * margin };
}

export class ZoomPane {
  /** `world`: rectangle of the picture; `spacing` and `unit`: size of a level-0 pixel, for the scale bar. */
  constructor(world, spacing, unit) {
    Object.assign(this, { world, spacing, unit });
    this.stage = make("div", "stage");
    this.bar = make("div", "scale-bar");
    this.bar.append(make("span")); // next to the bar: however short it gets, the text is never wider than what it measures
    this.stage.addEventListener("pointermove", (event) => this.read(event));
    this.stage.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
  }

  /** Open the picture; `placed` is called once overlays can be laid on it. */
  open(tileSources, label, options, placed) {
    this.viewer = OpenSeadragon({
      element: this.stage, tileSources, drawer: "canvas", showNavigationControl: false, animationTime: 0.35,
      minZoomImageRatio: 0.5, visibilityRatio: 0.2, gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true }, ...options,
    });
    this.label(label);
    // turning and mirroring would leave the overlays behind
    this.viewer.addHandler("canvas-key", (event) => {
      if ("rf".includes(event.originalEvent.key.toLowerCase())) event.preventDefaultAction = true;
    });
    for (const happening of ["animation", "resize", "open"]) this.viewer.addHandler(happening, () => this.measure());
    this.viewer.addHandler("animation-start", () => this.settle(true));
    this.viewer.addHandler("animation-finish", () => this.settle(false));
    this.ready = new Promise((done) => this.viewer.addOnceHandler("open", () => {
      placed();
      this.viewer.world.getItemAt(0).addHandler("fully-loaded-change", () => this.settle(this.moving));
      this.settle(false);
      this.measure();
      done();
    }));
    this.stage.append(this.bar);
  }

  label(text) {
    this.viewer.canvas.setAttribute("aria-label", text);
  }

  loaded() {
    return this.viewer.world.getItemAt(0)?.getFullyLoaded();
  }

  /** The stage is busy while it moves or waits for pixels. */
  settle(moving) {
    this.moving = moving;
    this.stage.setAttribute("aria-busy", moving || !this.loaded());
  }

  rect(left, top, right, bottom) {
    const unit = this.world.width;
    return new OpenSeadragon.Rect((left - this.world.x) / unit, (top - this.world.y) / unit, (right - left) / unit, (bottom - top) / unit);
  }

  /** Lay an element over a rectangle of the picture. */
  cover(element, extent) {
    this.viewer.addOverlay({ element, location: this.rect(...extent) });
  }

  unitsPerPixel() {
    return (this.world.width * this.viewer.viewport.getBounds(true).width) / this.viewer.viewport.getContainerSize().x;
  }

  /** A bar of a round length for the present zoom. */
  measure() {
    const perPixel = this.unitsPerPixel();
    const length = roundLength(perPixel * 120 * this.spacing);
    this.bar.style.width = `${length / this.spacing / perPixel}px`;
    this.bar.firstChild.textContent = lengthText(length, this.unit);
  }

  /** Place on the picture of a pixel of the stage. */
  placeOf(pixel) {
    const point = this.viewer.viewport.pointFromPixel(pixel, true).times(this.world.width);
    return [point.x + this.world.x, point.y + this.world.y];
  }

  /** Place on the picture under the pointer. */
  placeUnder(event) {
    const box = this.stage.getBoundingClientRect();
    return this.placeOf(new OpenSeadragon.Point(event.clientX - box.left, event.clientY - box.top));
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

/** Panes that show the same place. Only the one under the pointer leads, or they would hold each other back. */
export function linkPanes(panes) {
  panes.forEach((pane, i) => { pane.leads = i === 0; });
  for (const from of panes) {
    const lead = () => panes.forEach((pane) => { pane.leads = pane === from; });
    for (const touch of ["pointerenter", "pointerdown", "wheel", "keydown"]) from.stage.addEventListener(touch, lead, true);
    for (const move of ["animation", "animation-finish"]) from.viewer.addHandler(move, () => from.leads && follow(from, panes));
  }
}

function follow(from, panes) {
  const { viewport } = from.viewer;
  for (const { viewer } of panes) {
    if (viewer === from.viewer) continue;
    viewer.viewport.zoomTo(viewport.getZoom(true), null, true);
    viewer.viewport.panTo(viewport.getCenter(true), true);
  }
}
