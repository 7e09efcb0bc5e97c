// Where instances lie: on a lattice (slides), as points, or in a row (scans and cases without usable coordinates).
const MOST_CELLS = 4_000_000;
const WIDEST_PATCH = 16;
const DOT = 0.012; // of the whole, for points without a size

/** Lowest and highest value, and the ends of the colour scale: 2nd and 98th percentile, as in the report. */
export function limitsOf(values) {
  const sorted = Float64Array.from(values).sort();
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const ends = [percentile(sorted, 0.02), percentile(sorted, 0.98)];
  return { low, high, sorted, colours: ends[1] > ends[0] ? ends : [ends[0] - 0.5, ends[1] + 0.5] };
}

function percentile(sorted, share) {
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

/** Rank of a score, 1 = highest; equal scores share the best rank. */
export function rankOf(sorted, score) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > score) high = middle;
    else low = middle + 1;
  }
  return sorted.length - low + 1;
}

/** The numbers of the `count` highest scores, highest first. */
export function highest(values, count) {
  return [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** Patches in the plane: corner and size in level-0 pixels, and the lattice when they lie on one. */
export function placesOf(info, coords) {
  const n = coords.length / 2;
  const x = coords.filter((_, i) => i % 2 === 0);
  const y = coords.filter((_, i) => i % 2 === 1);
  if (info.kind === "points") return dotsOf(x, y, info.patch);
  const step = info.step ?? info.patch ?? [smallestGap(x), smallestGap(y)];
  const patch = info.patch ?? step;
  const [left, top] = [least(x), least(y)];
  const places = { n, x, y, patch, step };
  const reach = [0, 1].map((axis) => Math.max(1, Math.min(WIDEST_PATCH, Math.round(patch[axis] / step[axis]))));
  const column = Int32Array.from(x, (v) => Math.floor((v - left) / step[0] + 0.5 + 1e-6));
  const row = Int32Array.from(y, (v) => Math.floor((v - top) / step[1] + 0.5 + 1e-6));
  const [columns, rows] = [most(column) + reach[0], most(row) + reach[1]];
  if (rows * columns > MOST_CELLS) return dotsOf(x, y, patch);
  return { ...places, reach, column, row, columns, rows, extent: [left, top, left + columns * step[0], top + rows * step[1]] };
}

/** Places without a lattice, as dots; those without a size get one that can be seen, around their place. */
function dotsOf(x, y, patch) {
  const wide = Math.max(most(x) - least(x), most(y) - least(y), 1);
  const size = patch ?? [wide * DOT, wide * DOT];
  const corner = (values, axis) => (patch ? values : values.map((v) => v - size[axis] / 2));
  const [left, top] = [corner(x, 0), corner(y, 1)];
  const extent = [least(left), least(top), most(left) + size[0], most(top) + size[1]];
  const middle = (values, axis) => values.map((v) => v + size[axis] / 2);
  const dots = { x: middle(left, 0), y: middle(top, 1), width: Math.min(...size) };
  return { n: x.length, x: left, y: top, patch: size, dots, extent };
}

/** Instances in a row: slices of a scan by number, patches of a scan with their place in the slice, others as they
 * come. `depth`: how many slices an instance covers. */
export function listed(info, coords) {
  const n = info.instances;
  if (info.axes !== 3) return { n, depth: 1, slice: coords ? Int32Array.from(coords, Math.round) : null };
  const plane = placesOf(flat(info), coords.filter((_, i) => i % 3 < 2));
  const slice = Int32Array.from({ length: n }, (_, i) => Math.round(coords[3 * i + 2]));
  return { ...plane, n, depth: Math.max(1, Math.round(info.patch?.[2] ?? 1)), slice };
}

function flat({ patch, step }) {
  return { kind: "slide", patch: patch?.slice(0, 2), step: step?.slice(0, 2) };
}

/** The numbers of the patches that a slice of a scan runs through. */
export function patchesOf({ slice, depth }, k) {
  return [...slice.keys()].filter((i) => slice[i] <= k && k < slice[i] + depth);
}

/** The scores and labels of some patches on the lattice of their slice, in the form that paint.js takes. */
export function sliceCells(places, chosen, values, labels) {
  const of = (all) => Int32Array.from(chosen, (i) => all[i]);
  const here = { ...places, n: chosen.length, column: of(places.column), row: of(places.row) };
  const marked = labels && meanPerCell(here, Float64Array.from(chosen, (i) => (labels[i] < 0 ? NaN : labels[i])));
  return {
    rows: places.rows, columns: places.columns, extent: places.extent,
    scores: meanPerCell(here, Float64Array.from(chosen, (i) => values[i])),
    labels: marked && Int8Array.from(marked, (share) => (share > 0.5 ? 1 : 0)),
  };
}

/** The instance of every slice; of several in one slice, the one with the highest score. */
export function instancePerSlice({ slice, depth }, values, count) {
  const order = new Array(count).fill(undefined);
  slice.forEach((first, i) => {
    for (let k = Math.max(0, first); k < Math.min(count, first + depth); k++) {
      if (!(values[order[k]] >= values[i])) order[k] = i;
    }
  });
  return order;
}

/** Mean of the values that cover each cell; NaN where nothing does. */
export function meanPerCell(places, values) {
  const total = new Float64Array(places.rows * places.columns);
  const count = new Float64Array(total.length);
  for (let i = 0; i < places.n; i++) {
    if (Number.isNaN(values[i])) continue;
    for (let down = 0; down < places.reach[1]; down++) {
      for (let right = 0; right < places.reach[0]; right++) {
        const cell = (places.row[i] + down) * places.columns + places.column[i] + right;
        total[cell] += values[i];
        count[cell]++;
      }
    }
  }
  return total.map((sum, cell) => (count[cell] ? sum / count[cell] : NaN));
}

/** The instance at a place (level-0 pixels): of those that cover it, the one whose middle is nearest; else -1. */
export function instanceAt(places, x, y, slack = 0) {
  let [best, nearest] = [-1, Infinity];
  const [wide, high] = places.patch;
  for (let i = 0; i < places.n; i++) {
    const dx = Math.abs(x - places.x[i] - wide / 2);
    const dy = Math.abs(y - places.y[i] - high / 2);
    const far = Math.max(dx / (wide / 2 + slack), dy / (high / 2 + slack));
    if (far <= 1 && far < nearest) [best, nearest] = [i, far];
  }
  return best;
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function smallestGap(values) {
  const sorted = Float64Array.from(new Set(values)).sort();
  let gap = Infinity;
  for (let i = 1; i < sorted.length; i++) gap = Math.min(gap, sorted[i] - sorted[i - 1]);
  return Number.isFinite(gap) ? gap : 1;
}
