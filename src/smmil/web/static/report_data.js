// What the page knows: facts at once, scores of a case when it is looked at.
import { coldestFirst } from "./paint.js";
import { fromBase64, remembered } from "./dom_helpers.js";

export const DATA = JSON.parse(document.getElementById("data").textContent);
export const PALETTES = Object.fromEntries(Object.entries(DATA.palettes).map(([name, text]) => [name, fromBase64(text)]));
const UNKNOWN_TRUTH = 2;
const MOST_UNPACKED = 48; // unpacked cases in memory; the oldest goes first

async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function rasterOf(number, model, layer = "score") {
  return DATA.cases[number].verdicts[model]?.rasters[layer] ?? null;
}

/** What a layer is and what its ends mean. */
export function layerOf(name) {
  return DATA.layers.find((layer) => layer.name === name);
}

const unpackedCells = remembered(MOST_UNPACKED, unpacked);

/** A layer and the truth of one case by one model, cell by cell; NaN and -1 where there is no tissue. A prediction
 * without this layer gives its scores. */
export function cellsOf(number, model, layer) {
  const held = rasterOf(number, model, layer) ? layer : "score";
  return unpackedCells(`s${number}-${model}-${held}`, { ...rasterOf(number, model, held), layer: held, curve: held === "score" ? DATA.models[model].curve : null });
}

async function unpacked(key, raster) {
  const bytes = await unzipped(fromBase64(document.getElementById(key).textContent));
  const total = raster.rows * raster.columns;
  const n = raster.cells;
  const maskBytes = Math.ceil(total / 8);
  const truth = bytes.subarray(maskBytes, maskBytes + n);
  const first = bytes.subarray(maskBytes + n, maskBytes + 2 * n);
  const second = bytes.subarray(maskBytes + 2 * n, maskBytes + 3 * n);
  const wide = raster.bits === 16;
  const step = (raster.high - raster.low) / (2 ** raster.bits - 1);
  const cells = { ...raster, scores: new Float64Array(total).fill(NaN), labels: new Int8Array(total).fill(-1) };
  for (let cell = 0, i = 0; cell < total; cell++) {
    if (!((bytes[cell >> 3] >> (cell & 7)) & 1)) continue;
    cells.scores[cell] = raster.low + (wide ? first[i] * 256 + second[i] : first[i]) * step;
    cells.labels[cell] = truth[i] === UNKNOWN_TRUTH ? -1 : truth[i];
    i++;
  }
  if (raster.kind === "points") Object.assign(cells, dotsOf(bytes, raster), { order: coldestFirst(cells.scores) });
  return cells;
}

/** The cells of one slice of a scan cut into patches; null where there is none. */
export function sliceCells(volume, slice) {
  const [first, , step] = volume.span;
  const layer = Math.floor((slice - first) / step + 1e-6);
  if (layer < 0 || layer >= volume.layers) return null;
  const rows = volume.rows / volume.layers;
  const part = (values) => values.subarray(layer * rows * volume.columns, (layer + 1) * rows * volume.columns);
  return { ...volume, rows, scores: part(volume.scores), labels: part(volume.labels) };
}

/** A scan cut into patches as a strip: every slice has the highest score of its patches, and is a lesion if one is. */
export function perSlice(volume) {
  const [first, end] = volume.span;
  const count = Math.max(1, Math.round(end - first));
  const highest = (values, none) => values.reduce((most, v) => (v > most || Number.isNaN(most) ? v : most), none);
  const slices = [...Array(count).keys()].map((place) => sliceCells(volume, first + place));
  const scores = Float64Array.from(slices, (cells) => (cells ? highest(cells.scores, NaN) : NaN));
  const labels = Int8Array.from(slices, (cells) => (cells ? highest(cells.labels, -1) : -1));
  const cells = scores.filter((score) => !Number.isNaN(score)).length;
  return { ...volume, kind: "strip", volume, scores, labels, cells, rows: 1, columns: count, extent: [first, 0, first + count, 1] };
}

/** Places of the dots in level-0 pixels, read from the end of the bytes. */
function dotsOf(bytes, raster) {
  const n = raster.cells;
  const at = bytes.length - 4 * n;
  const number = (plane, i) => bytes[at + plane * n + i] * 256 + bytes[at + (plane + 1) * n + i];
  const [left, top, right, bottom] = raster.extent;
  const [x, y] = [new Float64Array(n), new Float64Array(n)];
  for (let i = 0, across = 0; i < n; i++) {
    across += number(0, i); // stored as the distance from the dot before
    x[i] = left + (across / 65535) * (right - left);
    y[i] = top + (number(2, i) / 65535) * (bottom - top);
  }
  return { x, y };
}

export function pictureOf(number) {
  const stored = document.getElementById(`p${number}`);
  return stored ? `data:image/jpeg;base64,${stored.textContent}` : null;
}
