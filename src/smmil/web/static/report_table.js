// The table of cases: sort, filter, small maps, keyboard.
import { colourOf, paintDots, paintHeat } from "./paint.js";
import { openCase } from "./report_case.js";
import { settings } from "./report_controls.js";
import { DATA, PALETTES, cellsOf, perSlice, rasterOf } from "./report_data.js";
import { field, groupedByPatient, make, makeMeter, moveFocus, outcomeClass, percent, shortNumber } from "./dom_helpers.js";

const COLUMNS = [
  { key: "map", title: "Map" },
  { key: "id", title: "Case", value: (c) => c.id },
  { key: "y", title: "Label", value: (c) => c.y },
  { key: "p", title: "Prediction", value: (c, v) => v && (v.value ?? v.p) },
  { key: "outcome", title: "Outcome", value: (c, v) => v && v.outcome },
  { key: "error", title: "Error", value: (c, v) => v && v.error, hint: DATA.models[0].target ? "distance from the truth" : "1 − probability of the true class" },
  { key: "instances", title: "Instances", value: (c, v) => v && v.instances },
  { key: "part", title: "Part", value: (c) => c.part },
];
export const table = { model: 0, sort: "error", down: true, order: [] };
export const body = document.querySelector("#case-table tbody");
const seen = new IntersectionObserver(
  (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => paintRow(e.target)),
  { rootMargin: "300px" },
);

function drawHead() {
  const row = document.querySelector("#case-table thead tr");
  row.replaceChildren(...COLUMNS.map((column) => {
    const cell = make("th", `column-${column.key}`);
    cell.scope = "col";
    if (!column.value) {
      cell.textContent = column.title;
      return cell;
    }
    const active = table.sort === column.key;
    cell.setAttribute("aria-sort", active ? (table.down ? "descending" : "ascending") : "none");
    const button = make("button", "sort", column.title);
    button.type = "button";
    button.dataset.key = column.key;
    button.title = column.hint || `Sort by ${column.title.toLowerCase()}`;
    button.append(make("span", "arrow", active ? (table.down ? " ↓" : " ↑") : ""));
    button.addEventListener("click", () => sortBy(column.key));
    cell.append(button);
    return cell;
  }));
}

function sortBy(key) {
  table.down = table.sort === key ? !table.down : key !== "id";
  table.sort = key;
  drawTable();
  document.querySelector(`#case-table button[data-key="${key}"]`).focus();
}

function compareCases(a, b) {
  const column = COLUMNS.find((c) => c.key === table.sort);
  return inOrder(column, a, b, wholeVerdict) || inOrder(column, a, b, (entry) => entry.verdicts[table.model]) || a - b;
}

/** What is said of the patient whose part a case is, else of the case. */
function wholeVerdict(entry) {
  return (entry.patient ?? entry).verdicts[table.model];
}

function inOrder(column, a, b, verdictOf) {
  const [x, y] = [a, b].map((i) => column.value(DATA.cases[i], verdictOf(DATA.cases[i])));
  const missing = (x === null || x === undefined) - (y === null || y === undefined);
  if (missing) return missing; // what has no value stands last, whichever way is up
  if (x === null || x === undefined) return 0;
  const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
  return table.down ? -order : order;
}

function fits(entry) {
  const text = field("search").value.trim().toLowerCase();
  const label = field("label-filter").value;
  const outcome = field("outcome-filter").value;
  const verdict = wholeVerdict(entry);
  return entry.id.toLowerCase().includes(text) && (label === "" || String(entry.y) === label) &&
    (outcome === "" || (verdict !== null && verdict.outcome === outcome));
}

export function drawTable() {
  drawHead();
  const sorted = DATA.cases.map((_, i) => i).filter((i) => fits(DATA.cases[i])).sort(compareCases);
  const groups = groupedByPatient(sorted, (i) => DATA.cases[i].patient?.id);
  table.order = groups.flat();
  body.replaceChildren(...groups.flatMap((cases) => [...patientRow(cases), ...cases.map(rowOf)]));
  repaintRows();
  if (caseRows().length) caseRows()[0].tabIndex = 0;
  const patients = new Set(table.order.map((i) => DATA.cases[i].patient?.id).filter(Boolean)).size;
  field("count").textContent = `${table.order.length} of ${DATA.cases.length} cases${patients ? `, ${patients} ${patients === 1 ? "patient" : "patients"}` : ""}`;
  field("nothing").hidden = table.order.length > 0;
}

/** The rows of cases, without those of patients above them. */
export function caseRows() {
  return [...body.rows].filter((row) => row.dataset.case !== undefined);
}

/** A row with what is said about a patient, above the rows of the patient's cases; none for cases by themselves. */
function patientRow(cases) {
  const entry = DATA.cases[cases[0]];
  if (!entry.patient) return [];
  const verdict = wholeVerdict(entry);
  const row = make("tr", "patient");
  const by = Object.fromEntries(COLUMNS.map(({ key }) => [key, make(key === "id" ? "th" : "td", `column-${key}`)]));
  by.id.scope = "rowgroup";
  by.id.textContent = `Patient of ${entry.patient.id} · ${entry.patient.cases} ${entry.patient.cases === 1 ? "case" : "cases"}`;
  by.y.textContent = entry.patient.y === null ? "–" : entry.patient.y;
  by.p.append(...(verdict ? predictionCell(verdict) : ["–"]));
  if (verdict) by.outcome.append(make("span", `outcome ${outcomeClass(verdict.outcome)}`, verdict.outcome));
  by.error.textContent = verdict ? shortNumber(verdict.error) : "–";
  row.append(...Object.values(by));
  return [row];
}

function rowOf(number) {
  const entry = DATA.cases[number];
  const verdict = entry.verdicts[table.model];
  const row = make("tr");
  row.dataset.case = number;
  row.tabIndex = -1;
  row.setAttribute("aria-label", `Open case ${entry.id}`);
  const cells = COLUMNS.map((column) => make(column.key === "id" ? "th" : "td", `column-${column.key}`));
  const by = Object.fromEntries(COLUMNS.map((column, i) => [column.key, cells[i]]));
  by.id.scope = "row";
  by.id.textContent = entry.id;
  by.y.textContent = entry.truth ?? (entry.y === null ? "–" : entry.y);
  by.part.textContent = entry.part || "–";
  by.map.append(make("canvas", "thumbnail"));
  by.p.append(...(verdict ? predictionCell(verdict) : ["–"]));
  if (verdict?.outcome) by.outcome.append(make("span", `outcome ${outcomeClass(verdict.outcome)}`, verdict.outcome));
  if (verdict?.undecided) by.outcome.append(" ", make("span", "undecided", "undecided"));
  if (verdict?.alarm) by.outcome.append(" ", make("span", "unlike", "unlike"));
  by.error.textContent = verdict ? shortNumber(verdict.error) : "–";
  by.instances.textContent = verdict ? verdict.instances.toLocaleString("en") : "–";
  row.append(...cells);
  return row;
}

function predictionCell({ p, answer, calibrated, words }) {
  if (words === "") return [make("span", "words", "its patient has one")];
  if (words !== undefined) return [...(p === null ? [] : [makeMeter(p)]), make("span", "words", words)];
  const several = DATA.models[table.model].classes > 2;
  const own = [makeMeter(p), make("span", "", several ? `${answer}: ${p.toFixed(3)}` : p.toFixed(3))];
  return calibrated === null || calibrated === undefined ? own : [...own, make("small", "calibrated", `calibrated ${percent(calibrated)}`)];
}

async function paintRow(row) {
  const number = Number(row.dataset.case);
  seen.unobserve(row);
  if (!rasterOf(number, table.model)) return;
  const held = await cellsOf(number, table.model, settings.layer);
  const cells = held.kind === "volume" ? perSlice(held) : held;
  const canvas = row.querySelector("canvas");
  if (!canvas.isConnected) return;
  const limits = settings.scale === "all" ? DATA.models[table.model].layers[cells.layer].colours : cells.colours;
  paintThumbnail(canvas, cells, { limits, palette: PALETTES[settings.palette], threshold: -Infinity });
  canvas.dataset.painted = settings.palette;
  canvas.dataset.scale = settings.scale;
  canvas.dataset.layer = cells.layer;
}

/** Paint the small maps again as they come into view. */
export function repaintRows() {
  seen.disconnect();
  for (const row of caseRows()) seen.observe(row);
}

/** A small heat map, whole and centred. */
function paintThumbnail(canvas, cells, how) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  if (cells.kind === "points") return paintDotThumbnail(canvas, cells, how);
  const small = make("canvas");
  paintHeat(small, cells, how);
  const [left, top, right, bottom] = cells.extent;
  const flat = cells.kind !== "map";
  const shape = flat ? canvas.width / canvas.height : (right - left) / (bottom - top);
  const width = Math.min(canvas.width, canvas.height * shape);
  const height = flat ? canvas.height * 0.6 : width / shape;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = small.width > canvas.width;
  context.drawImage(small, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}

function paintDotThumbnail(canvas, cells, how) {
  const { width, height } = canvas;
  const [left, top, right, bottom] = cells.extent;
  const scale = Math.min(width / (right - left), height / (bottom - top));
  const [spareX, spareY] = [width / scale - (right - left), height / scale - (bottom - top)];
  const view = { left: left - spareX / 2, top: top - spareY / 2, scale, smallest: 1.1, width, height };
  paintDots(canvas.getContext("2d"), cells, view, cells.order, (i) => colourOf(cells.scores[i], how));
}

export function tableKeys(event) {
  const row = event.target.closest("tr");
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
  if (event.key === "Enter" || event.key === " ") openCase(Number(row.dataset.case));
  else if (event.key in steps) moveFocus(caseRows(), row, steps[event.key]);
  else return;
  event.preventDefault();
}
