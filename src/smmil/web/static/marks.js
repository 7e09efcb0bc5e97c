// Marks of the reader: which patches are lesions and which are not, kept in this page until they are downloaded.
import { announce, note } from "./messages.js";
import { goTo } from "./case_panes.js";
import { facts } from "./facts.js";
import { change, onChange, state } from "./state.js";
import { field, labelText, make, makeButton } from "./dom_helpers.js";

const marks = new Map(); // number of a case: { instance: 1 or 0 }
let saved = true;

export function prepareMarks() {
  onChange(["case", "opened", "marked"], drawMarks);
  window.addEventListener("beforeunload", (event) => !saved && event.preventDefault());
  drawMarks();
}

const marksOf = (number) => marks.get(number) ?? new Map();

/** Mark the inspected patch as lesion (1) or not (0); the same again takes the mark away. */
export function mark(label) {
  const { opened, patch } = state;
  if (!opened || opened.number !== state.case || patch === null) return;
  const mine = new Map(marksOf(opened.number));
  const gone = mine.get(patch) === label;
  if (gone) mine.delete(patch);
  else mine.set(patch, label);
  if (mine.size) marks.set(opened.number, mine);
  else marks.delete(opened.number);
  saved = marks.size === 0;
  announce(gone ? `mark of #${patch} taken away` : `#${patch} marked as ${labelText(label)}`);
  change({ marked: state.marked + 1 });
}

/** Two buttons for the inspected patch; the one that was chosen stays down. */
export function markButtons(opened, instance) {
  const row = make("div", "ranks marking");
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "What do you see here?");
  row.append(make("span", "hint", "Mark as"));
  for (const [label, key] of [[1, "l"], [0, "o"]]) {
    const button = makeButton(labelText(label), `Mark as ${labelText(label)}, for training (${key})`, () => mark(label));
    button.setAttribute("aria-pressed", marksOf(opened.number).get(instance) === label);
    button.dataset.mark = label;
    row.append(button);
  }
  return row;
}

function drawMarks() {
  const count = [...marks.values()].reduce((sum, mine) => sum + mine.size, 0);
  field("mark-section").hidden = count === 0;
  if (!count) return;
  const cases = marks.size === 1 ? "1 case" : `${marks.size} cases`;
  field("mark-words").textContent = `${count} marked in ${cases}. Save them into a folder and train with data.corrections; only training cases teach.`;
  const here = [...marksOf(state.case)].sort(([a], [b]) => a - b);
  field("marks").replaceChildren(...here.map(([instance, label]) => {
    const button = makeButton(`#${instance} ${labelText(label)}`, `Go to #${instance}`, () => goTo(instance));
    button.dataset.instance = instance;
    return button;
  }), makeButton("Save marks", "Download all marks of this page", download));
}

/** What smmil train reads: a row per mark, with the number of patches of its case, which shows when the tiling is another. */
function tableOf() {
  const rows = [...marks].flatMap(([number, mine]) => [...mine].map(([instance, label]) =>
    [cell(facts.cases[number].id), instance, facts.cases[number].instances, label].join(",")));
  return ["id,instance,of,label", ...rows, ""].join("\n");
}

/** A text for a table: quoted, and nothing that a spreadsheet would compute. */
function cell(text) {
  const safe = /^\s*[=+\-@＝＋－＠]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

function download() {
  const link = make("a");
  Object.assign(link, { href: URL.createObjectURL(new Blob([tableOf()], { type: "text/csv" })), download: "viewer_marks.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  saved = true;
  note("viewer_marks.csv holds all marks of this page. Put it into a folder of corrections and train with data.corrections and training.instance_loss.");
}
