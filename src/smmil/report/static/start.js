// Wire everything up.
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  field("theme").textContent = dark ? "Light" : "Dark";
  if (shown.number !== null) drawPanes();
}

function listenToTable() {
  body.addEventListener("click", (event) => openCase(Number(event.target.closest("tr").dataset.case)));
  body.addEventListener("keydown", tableKeys);
  field("filters").addEventListener("submit", (event) => event.preventDefault());
  field("table-model").addEventListener("change", (event) => {
    table.model = Number(event.target.value);
    settings.left = table.model;
    drawTable();
  });
  for (const id of ["search", "label-filter", "outcome-filter"]) field(id).addEventListener("input", drawTable);
}

function listenToCase() {
  field("previous").addEventListener("click", () => step(-1));
  field("next").addEventListener("click", () => step(1));
  field("close").addEventListener("click", () => dialog.close());
  field("zoom-in").addEventListener("click", () => zoomAll(1.5));
  field("zoom-out").addEventListener("click", () => zoomAll(1 / 1.5));
  field("home").addEventListener("click", wholeAll);
  dialog.addEventListener("close", closed);
  dialog.addEventListener("keydown", caseKeys, true);
}

field("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);
prepareControls();
listenToTable();
listenToCase();
drawTable();
document.documentElement.dataset.ready = "yes";
