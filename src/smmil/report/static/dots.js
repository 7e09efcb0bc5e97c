// Instances on no lattice: one dot each, at its own place.
const SMALLEST_DOT = 2.2; // radius in pixels of the screen: an instance that is smaller there must still be seen
const SHADES = 256;

/** Places of the dots in level-0 pixels, and their order from coldest to hottest; read from the end of the bytes. */
function placesOf(bytes, raster) {
  const n = raster.cells;
  const at = bytes.length - 4 * n;
  const number = (plane, i) => bytes[at + plane * n + i] * 256 + bytes[at + (plane + 1) * n + i];
  const [left, top, right, bottom] = raster.extent;
  const [x, y] = [new Float64Array(n), new Float64Array(n)];
  for (let i = 0, across = 0; i < n; i++) {
    across += number(0, i); // stored as the way from the dot before
    x[i] = left + (across / 65535) * (right - left);
    y[i] = top + (number(2, i) / 65535) * (bottom - top);
  }
  return { x, y };
}

function coldestFirst(scores) {
  return Uint32Array.from(scores.keys()).sort((a, b) => scores[a] - scores[b]);
}

/** The view of a canvas: level-0 pixel of its corner, screen pixels per level-0 pixel, size of the canvas. */
function dotRadius(cells, view) {
  return Math.max(view.smallest || SMALLEST_DOT, ((cells.width || 0) * view.scale) / 2);
}

/** Dots of the chosen instances in view, given from coldest to hottest; `shade` gives each one's colour. */
function paintDots(pen, cells, view, chosen, shade) {
  const radius = dotRadius(cells, view);
  let last = null;
  pen.beginPath();
  for (const i of chosen) {
    const x = (cells.x[i] - view.left) * view.scale;
    const y = (cells.y[i] - view.top) * view.scale;
    if (x < -radius || y < -radius || x > view.width + radius || y > view.height + radius) continue;
    const colour = shade(i);
    if (colour !== last) {
      pen.fill();
      pen.beginPath();
      pen.fillStyle = colour;
      last = colour;
    }
    pen.moveTo(x + radius, y);
    pen.arc(x, y, radius, 0, 2 * Math.PI);
  }
  pen.fill();
}

/** The border of all lesions together, white on dark so that it shows on every colour; dots that touch share one. */
function paintRings(pen, cells, view) {
  const radius = dotRadius(cells, view);
  const lesions = [...cells.known.keys()].filter((i) => cells.known[i] === 1);
  const discs = (more) => {
    const all = new Path2D();
    for (const i of lesions) {
      const [x, y] = [(cells.x[i] - view.left) * view.scale, (cells.y[i] - view.top) * view.scale];
      all.moveTo(x + radius + more, y);
      all.arc(x, y, radius + more, 0, 2 * Math.PI);
    }
    return all;
  };
  for (const [colour, more] of [["#101010", 3.2], ["#ffffff", 2.2]]) {
    pen.fillStyle = colour;
    pen.fill(discs(more));
  }
  pen.globalCompositeOperation = "destination-out";
  pen.fill(discs(0.4));
}

/** Colours of the scores as text, one per shade. */
function shader(cells, limits, palette) {
  const colours = Array.from({ length: SHADES }, (_, c) => `rgb(${palette.slice(3 * c, 3 * c + 3).join(",")})`);
  return (i) => colours[colourIndex(cells.scores[i], limits)];
}

function paintDotThumbnail(canvas, cells, limits, palette) {
  const [left, top, right, bottom] = cells.extent;
  const scale = Math.min(canvas.width / (right - left), canvas.height / (bottom - top));
  const [spareX, spareY] = [canvas.width - (right - left) * scale, canvas.height - (bottom - top) * scale];
  const view = {
    left: left - spareX / 2 / scale, top: top - spareY / 2 / scale, scale, smallest: 1.1,
    width: canvas.width, height: canvas.height,
  };
  paintDots(canvas.getContext("2d"), cells, view, cells.order, shader(cells, limits, palette));
}
