// The table of cases: sort, filter, small maps, keyboard.
const COLUMNS = [
  { key: "map", title: "Map" },
  { key: "id", title: "Case", value: (c) => c.id },
  { key: "y", title: "Label", value: (c) => c.y },
  { key: "p", title: "Prediction", value: (c, s) => s && s.p },
  { key: "outcome", title: "Outcome", value: (c, s) => s && s.outcome },
  { key: "error", title: "Error", value: (c, s) => s && s.error, hint: "1 − probability of the true class" },
  { key: "instances", title: "Instances", value: (c, s) => s && s.instances },
  { key: "part", title: "Part", value: (c) => c.part },
];
const table = { model: 0, sort: "error", down: true, order: [] };
const body = document.querySelector("#case-table tbody");
const seen = new IntersectionObserver(
  (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => paintRow(e.target)),
  { rootMargin: "300px" },
);

/** Colour of an outcome: missed lesions are worse than false alarms. */
function outcomeClass(outcome) {
  return { "true positive": "correct", "true negative": "correct", "false negative": "missed", "false positive": "false-alarm" }[outcome] || outcome;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

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
  const [x, y] = [a, b].map((i) => column.value(DATA.cases[i], DATA.cases[i].said[table.model]));
  const missing = (x === null || x === undefined) - (y === null || y === undefined);
  if (missing) return missing; // what has no value stands last, whichever way is up
  const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
  return (table.down ? -order : order) || a - b;
}

function fits(entry) {
  const text = document.getElementById("search").value.trim().toLowerCase();
  const label = document.getElementById("label-filter").value;
  const outcome = document.getElementById("outcome-filter").value;
  const said = entry.said[table.model];
  return entry.id.toLowerCase().includes(text) && (label === "" || String(entry.y) === label) &&
    (outcome === "" || (said !== null && said.outcome === outcome));
}

function drawTable() {
  drawHead();
  table.order = DATA.cases.map((_, i) => i).filter((i) => fits(DATA.cases[i])).sort(compareCases);
  seen.disconnect();
  body.replaceChildren(...table.order.map(rowOf));
  for (const row of body.rows) seen.observe(row);
  if (body.rows.length) body.rows[0].tabIndex = 0;
  document.getElementById("count").textContent = `${table.order.length} of ${DATA.cases.length} cases`;
  document.getElementById("nothing").hidden = table.order.length > 0;
}

function rowOf(number) {
  const entry = DATA.cases[number];
  const said = entry.said[table.model];
  const row = make("tr");
  row.dataset.case = number;
  row.tabIndex = -1;
  row.setAttribute("aria-label", `Open case ${entry.id}`);
  const cells = COLUMNS.map((column) => make(column.key === "id" ? "th" : "td", `column-${column.key}`));
  const by = Object.fromEntries(COLUMNS.map((column, i) => [column.key, cells[i]]));
  by.id.scope = "row";
  by.id.textContent = entry.id;
  by.y.textContent = entry.y === null ? "–" : entry.y;
  by.part.textContent = entry.part || "–";
  by.map.append(make("canvas", "thumbnail"));
  by.p.append(...(said ? predictionCell(said) : ["–"]));
  if (said) by.outcome.append(make("span", `outcome ${outcomeClass(said.outcome)}`, said.outcome));
  by.error.textContent = said ? shortNumber(said.error) : "–";
  by.instances.textContent = said ? said.instances.toLocaleString("en") : "–";
  row.append(...cells);
  return row;
}

function predictionCell(said) {
  const several = DATA.models[table.model].classes > 2;
  const meter = make("span", "meter");
  const filled = make("span", "filled");
  filled.style.width = `${said.p * 100}%`;
  meter.append(filled);
  return [meter, make("span", "", several ? `${said.answer}: ${said.p.toFixed(3)}` : said.p.toFixed(3))];
}

async function paintRow(row) {
  const number = Number(row.dataset.case);
  seen.unobserve(row);
  if (!rasterOf(number, table.model)) return;
  const cells = await cellsOf(number, table.model);
  const canvas = row.querySelector("canvas");
  if (!canvas.isConnected) return;
  paintThumbnail(canvas, cells, cells.colours, PALETTES[settings.palette]);
  canvas.dataset.painted = settings.palette;
}

function moveRow(row, by) {
  const rows = [...body.rows];
  const next = rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(row) + by))];
  rows.forEach((r) => { r.tabIndex = -1; });
  next.tabIndex = 0;
  next.focus();
}

function tableKeys(event) {
  const row = event.target.closest("tr");
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
  if (event.key === "Enter" || event.key === " ") openCase(Number(row.dataset.case));
  else if (event.key in steps) moveRow(row, steps[event.key]);
  else return;
  event.preventDefault();
}
