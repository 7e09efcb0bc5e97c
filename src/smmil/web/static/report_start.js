// Wire the report up.
import { caseKeys, closed, dialog, drawPanes, openCase, step } from "./report_case.js";
import { prepareControls, settings } from "./report_controls.js";
import { body, drawTable, table, tableKeys } from "./report_table.js";
import { field, prepareTheme } from "./dom_helpers.js";

function listenToTable() {
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-case]");
    if (row) openCase(Number(row.dataset.case));
  });
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
  dialog.addEventListener("close", closed);
  dialog.addEventListener("keydown", caseKeys, true);
}

prepareTheme(drawPanes);
prepareControls();
listenToTable();
listenToCase();
drawTable();
document.documentElement.dataset.ready = "yes";
