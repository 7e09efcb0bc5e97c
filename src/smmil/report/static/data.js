// What the page knows: facts at once, scores of a case when it is looked at.
const DATA = JSON.parse(document.getElementById("data").textContent);
const PALETTES = Object.fromEntries(Object.entries(DATA.palettes).map(([name, text]) => [name, fromBase64(text)]));
const UNKNOWN_TRUTH = 2;
const KEPT = 48; // unpacked cases in memory; the oldest goes first
const kept = new Map();

function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function rasterOf(number, model) {
  const said = DATA.cases[number].said[model];
  return said === null ? null : said.raster;
}

/** Scores and truth of one case as said by one model, cell by cell; NaN and 255 where there is no tissue. */
function cellsOf(number, model) {
  const key = `s${number}-${model}`;
  if (!kept.has(key)) {
    kept.set(key, unpacked(key, rasterOf(number, model)));
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(key);
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
  const cells = { ...raster, scores: new Float64Array(total).fill(NaN), known: new Uint8Array(total).fill(255) };
  for (let cell = 0, i = 0; cell < total; cell++) {
    if (!((bytes[cell >> 3] >> (cell & 7)) & 1)) continue;
    cells.scores[cell] = raster.low + (wide ? first[i] * 256 + second[i] : first[i]) * step;
    cells.known[cell] = truth[i];
    i++;
  }
  if (raster.kind === "points") Object.assign(cells, placesOf(bytes, raster), { order: coldestFirst(cells.scores) });
  return cells;
}

function pictureOf(number) {
  const stored = document.getElementById(`p${number}`);
  return stored ? `data:image/jpeg;base64,${stored.textContent}` : null;
}

function shortNumber(value) {
  if (value === null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : 3);
}
