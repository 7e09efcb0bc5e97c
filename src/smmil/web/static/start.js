// Wire the viewer up.
import { prepareAddress } from "./address.js";
import { facts, loadFacts } from "./facts.js";
import { prepareInspector } from "./inspector.js";
import { prepareKeys } from "./keys.js";
import { firstCase, prepareList, step } from "./list.js";
import { prepareMarks } from "./marks.js";
import { note } from "./messages.js";
import { preparePanel } from "./panel.js";
import { report } from "./server.js";
import { redraw } from "./case_panes.js";
import { prepareControls } from "./tools.js";
import { field, prepareTheme } from "./dom_helpers.js";

async function start() {
  try {
    await loadFacts();
  } catch (problem) {
    report(problem, start);
    return;
  }
  field("title").textContent = facts.title || "smmil view";
  field("software").textContent = `${facts.software}. Research use only: not for diagnosis. Slide viewing by OpenSeadragon (BSD-3-Clause).`;
  prepareControls();
  preparePanel();
  prepareInspector();
  prepareMarks();
  prepareList();
  prepareKeys();
  prepareAddress(firstCase);
  if (facts.alarms?.length) note(facts.alarms.join(" "));
  document.documentElement.dataset.ready = "yes";
}

field("notice-read").addEventListener("click", () => note(""));
field("previous").addEventListener("click", () => step(-1));
field("next").addEventListener("click", () => step(1));
prepareTheme(redraw);
start();
