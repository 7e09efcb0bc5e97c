// Wire everything up.
import { prepareAddress } from "./address.js";
import { prepareControls } from "./controls.js";
import { facts, loadFacts } from "./facts.js";
import { prepareInspector } from "./inspector.js";
import { prepareKeys } from "./keys.js";
import { firstCase, prepareList, step } from "./list.js";
import { preparePanel } from "./panel.js";
import { tell } from "./server.js";
import { redraw } from "./stage.js";
import { field, note } from "./words.js";

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  field("theme").textContent = dark ? "Light" : "Dark";
  redraw();
}

async function start() {
  try {
    await loadFacts();
  } catch (problem) {
    tell(problem, start);
    return;
  }
  field("title").textContent = facts.title || "smmil view";
  field("software").textContent = `${facts.software}. Research use only: not for diagnosis. Slide viewing by OpenSeadragon (BSD-3-Clause).`;
  prepareControls();
  preparePanel();
  prepareInspector();
  prepareList();
  prepareKeys();
  prepareAddress(firstCase);
  document.documentElement.dataset.ready = "yes";
}

field("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
field("notice-read").addEventListener("click", () => note(""));
field("previous").addEventListener("click", () => step(-1));
field("next").addEventListener("click", () => step(1));
setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);
start();
