// The list of cases: search, filters, order, small maps, keyboard.
import { facts } from "./facts.js";
import { note } from "./messages.js";
import { addressed } from "./server.js";
import { change, onChange, state } from "./state.js";
import { field, fillSelect, groupedByPatient, make, makeMeter, moveFocus, outcomeClass } from "./dom_helpers.js";

let order = [];

export function prepareList() {
  const outcomes = new Set(facts.cases.flatMap((entry) => entry.outcome).filter(Boolean));
  fillFilter("label-filter", "all labels", [...new Set(facts.cases.map((c) => c.label))].sort().map((y) => [String(y), y === null ? "unlabelled" : `label ${y}`]));
  fillFilter("outcome-filter", "all outcomes", [...outcomes].sort().map((outcome) => [outcome, outcome]));
  const kinds = { slide: "slides", scan: "scans", points: "points", none: "no coordinates" };
  fillFilter("kind-filter", "all kinds", [...new Set(facts.cases.map((c) => c.kind))].sort().map((kind) => [kind, kinds[kind] ?? kind]));
  for (const id of ["search", "label-filter", "outcome-filter", "kind-filter", "sort"]) field(id).addEventListener("input", drawList);
  field("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    if (order.length) openCase(order[0]);
  });
  field("cases").addEventListener("click", (event) => {
    const row = event.target.closest("li[data-case]");
    if (row) openCase(Number(row.dataset.case));
  });
  field("cases").addEventListener("keydown", listKeys);
  field("left-out").replaceChildren(...(facts.notes ?? []).map((words) => make("li", "", words)));
  field("left-out").hidden = !facts.notes?.length;
  onChange(["left"], drawList);
  onChange(["case"], mark);
  drawList();
}

function fillFilter(id, all, options) {
  fillSelect(field(id), [["", all], ...options], "");
  field(id).disabled = options.length < 2;
}

function fits(entry) {
  const text = field("search").value.trim().toLowerCase();
  const [label, outcome, kind] = ["label-filter", "outcome-filter", "kind-filter"].map((id) => field(id).value);
  return entry.id.toLowerCase().includes(text) && (label === "" || String(entry.label) === label) &&
    (outcome === "" || entry.outcome[state.left] === outcome) && (kind === "" || entry.kind === kind);
}

/** How wrong the chosen model is: 1 - probability of the true class; nothing for cases without label. */
function errorOf(entry) {
  if (entry.said) return entry.said[state.left]?.error ?? null;
  const [p, outcome] = [entry.probability[state.left], entry.outcome[state.left]];
  if (entry.label === null || p === null) return null;
  if (outcome === "correct" || outcome === "wrong") return outcome === "wrong" ? p : 1 - p; // several classes: p of the answer
  return Math.abs(entry.label - p);
}

function compare(a, b) {
  const [one, other] = [facts.cases[a], facts.cases[b]];
  const how = field("sort").value;
  if (how === "id") return one.id.localeCompare(other.id, undefined, { numeric: true }) || a - b;
  const [x, y] = [one, other].map((entry) => (how === "worst" ? errorOf(entry) : entry.said?.[state.left]?.value ?? entry.probability[state.left]));
  if (x === null || y === null) return (x === null) - (y === null) || a - b; // without a value: last, whichever way is up
  return (how === "low" ? x - y : y - x) || a - b;
}

function drawList() {
  const sorted = facts.cases.map((_, i) => i).filter((i) => fits(facts.cases[i])).sort(compare);
  const groups = groupedByPatient(sorted, (i) => facts.cases[i].patient);
  order = groups.flat();
  field("cases").replaceChildren(...groups.flatMap((cases) => [...patientRow(cases), ...cases.map(rowOf)]));
  field("count").textContent = `${order.length} of ${facts.cases.length} cases`;
  field("nothing").hidden = order.length > 0;
  mark();
}

/** The rows of cases, without the headings of patients. */
function caseRows() {
  return [...field("cases").children].filter((row) => row.dataset.case !== undefined);
}

/** A heading above the cases of a patient; none for cases by themselves. */
function patientRow(cases) {
  const { patient } = facts.cases[cases[0]];
  if (!patient) return [];
  const heading = make("li", "patient", `Patient of ${patient} · ${cases.length} ${cases.length === 1 ? "case" : "cases"}`);
  heading.setAttribute("role", "presentation");
  return [heading];
}

function rowOf(number) {
  const entry = facts.cases[number];
  const [p, outcome] = [entry.probability[state.left], entry.outcome[state.left]];
  const row = make("li", "case");
  row.dataset.case = number;
  row.setAttribute("role", "option");
  const text = make("div", "case-text");
  const id = make("span", "case-id", entry.id);
  id.title = entry.id;
  const line = make("span", "case-line");
  const words = entry.said?.[state.left]?.words;
  if (words) line.append(make("span", "case-words", words));
  else line.append(makeMeter(p), make("span", "case-p", p === null ? "–" : p.toFixed(3)));
  const verdict = make("span", "case-line");
  verdict.append(make("span", "case-label", labelWords(entry)));
  if (outcome && (!entry.said || outcomeClass(outcome) in { correct: 1, wrong: 1 })) verdict.append(make("span", `outcome ${outcomeClass(outcome)}`, outcome));
  text.append(id, line, verdict);
  if (entry.unlike) text.append(make("span", "unlike", "unlike the training cases"));
  row.append(pictureOf(number), text);
  return row;
}

/** What is known of a case: its class, or the truth of another target in words. */
export function labelWords(entry, unknown = "no label") {
  if (entry.said) return entry.known ? `true: ${entry.known}` : unknown;
  return entry.label === null ? unknown : `label ${entry.label}`;
}

function pictureOf(number) {
  const frame = make("span", "small-map");
  if (facts.cases[number].kind === "none") return frame;
  const picture = make("img");
  Object.assign(picture, { alt: "", loading: "lazy", decoding: "async", src: addressed(`/thumbnail/${number}.png`) });
  picture.addEventListener("error", () => picture.remove());
  frame.append(picture);
  return frame;
}

/** The opened case is selected; it, or else the first of the list, takes the keyboard. */
function mark() {
  const rows = caseRows();
  const selected = rows.find((row) => Number(row.dataset.case) === state.case);
  for (const row of rows) {
    row.setAttribute("aria-selected", row === selected);
    row.tabIndex = row === (selected ?? rows[0]) ? 0 : -1;
  }
  selected?.scrollIntoView({ block: "nearest" });
  const place = order.indexOf(state.case);
  field("previous").disabled = place <= 0;
  field("next").disabled = place < 0 ? !order.length : place >= order.length - 1;
}

export function openCase(number) {
  if (number === state.case) return;
  note("");
  change({ case: number, patch: null, slice: null, view: null });
}

export function firstCase() {
  return order[0] ?? null;
}

export function step(by) {
  const next = order[order.indexOf(state.case) + by];
  if (next !== undefined) openCase(next);
}

function listKeys(event) {
  const row = event.target.closest("li");
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -1e9, End: 1e9 };
  if (event.key === "Enter" || event.key === " ") openCase(Number(row.dataset.case));
  else if (event.key in steps) moveFocus(caseRows(), row, steps[event.key]);
  else return;
  event.preventDefault();
  event.stopPropagation();
}
