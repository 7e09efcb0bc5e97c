// One instance, closely: its scores, its pixels, its neighbours and what looks like it.
import { facts } from "./facts.js";
import { markButtons } from "./marks.js";
import { announce } from "./messages.js";
import { Problem, addressed, askJson, report } from "./server.js";
import { goTo } from "./case_panes.js";
import { change, onChange, state } from "./state.js";
import { field, labelText, make, makeButton, shortNumber } from "./dom_helpers.js";

const WAIT = 120; // scrolling through a scan must not ask for every slice on the way
let turn = 0;
let waiting = 0;

export function prepareInspector() {
  onChange(["patch", "opened", "models"], look);
  onChange(["marked"], () => field("inspector").querySelector(".marking")?.replaceWith(markButtons(state.opened, state.patch)));
  look();
}

function look() {
  clearTimeout(waiting);
  const mine = ++turn;
  const { opened, patch } = state;
  field("patch-title").textContent = opened?.info.kind === "scan" && opened.info.axes === 1 ? "Slice" : ["slide", "scan"].includes(opened?.info.kind) ? "Patch" : "Instance";
  if (!opened || opened.number !== state.case || patch === null) return empty();
  waiting = setTimeout(() => ask(mine, opened, patch), WAIT);
}

function empty() {
  delete field("inspector").dataset.instance;
  field("inspector").replaceChildren(make("p", "hint", "Click a patch, or choose one of the highest scores, to see it closely."));
}

async function ask(mine, opened, patch) {
  try {
    const answer = await askJson(`/api/case/${opened.number}/instance/${patch}?model=${state.models[0]}`);
    if (mine === turn) draw(opened, answer);
  } catch (problem) {
    if (mine !== turn) return;
    if (problem instanceof Problem) empty();
    report(problem, look);
  }
}

function draw(opened, answer) {
  const host = field("inspector");
  const parts = [headOf(opened, answer), markButtons(opened, answer.index), scoresOf(answer)];
  if (opened.info.image) parts.unshift(pictureOf(opened, answer.index));
  parts.push(...rowOf("Neighbours", opened, answer.neighbours, () => ""));
  if (answer.similar) parts.push(...rowOf("Most similar with a high score", opened, answer.similar, (one) => `${Math.round(one.similarity * 100)} %`));
  else if (answer.similar_reason) parts.push(make("p", "hint", `Similar ones: ${answer.similar_reason}`));
  host.replaceChildren(...parts);
  host.dataset.instance = answer.index;
  const first = answer.models[state.models[0]];
  if (first) announce(`${nameOf(opened, answer.index)}: score ${shortNumber(first.score)}, rank ${first.rank} of ${first.of}`);
}

/** How the reader knows an instance: a slice by its place in the scan, counted from 1; others by their number. */
function nameOf({ info, places }, index) {
  if (info.kind !== "scan") return `#${index}`;
  const slice = places.slice[index];
  const alone = places.slice.filter((other) => other === slice).length === 1;
  return `slice ${slice + 1}${alone ? "" : ` · #${index}`}`;
}

function headOf(opened, answer) {
  const line = make("p", "where");
  const at = answer.coords?.map((v) => Math.round(v));
  const place = !at || at.length === 1 ? "" : `x ${at[0]}, y ${at[1]}`;
  line.append(make("span", "", [nameOf(opened, answer.index), place].filter(Boolean).join(" · ")));
  if (answer.label !== null) line.append(make("span", `outcome ${answer.label ? "missed" : ""}`, labelText(answer.label)));
  if (opened.info.kind !== "scan") line.append(makeButton("×", "Close (Esc)", () => change({ patch: null })));
  return line;
}

function scoresOf(answer) {
  const kinds = answer.models.map((model) => model?.probability_kind ?? answer.probability_kind).filter(Boolean);
  const table = make("table", "numbers");
  const head = make("tr");
  for (const [words, title] of [["Model"], ["Score"], ["Rank"], ["Share", kinds[0]]]) {
    const cell = make("th", "", words);
    cell.scope = "col";
    if (title) cell.title = title;
    head.append(cell);
  }
  table.append(head, ...answer.models.map((model, i) => modelRow(model, i)).filter(Boolean));
  const part = make("div");
  part.append(table);
  if (kinds.length) part.append(make("p", "hint", `Share: ${[...new Set(kinds)].join(", ")}.`));
  return part;
}

function modelRow(model, i) {
  if (!model) return null;
  const row = make("tr", state.models.includes(i) ? "shown" : "");
  const name = make("th");
  name.append(...facts.models[i].name.split(/(?<=[_-])/).flatMap((part) => [part, make("wbr")])); // never cut off
  name.scope = "row";
  const share = model.probability === null ? "–" : shortNumber(model.probability);
  row.append(name, make("td", "score", shortNumber(model.score)), make("td", "rank", `${model.rank} of ${model.of}`), make("td", "share", share));
  row.dataset.model = i;
  return row;
}

function pictureOf(opened, index) {
  const link = make("a", "patch-picture");
  Object.assign(link, { href: addressed(`/patch/${opened.number}/${index}.jpg`), target: "_blank", rel: "noopener", title: "Open at full resolution" });
  link.append(imageOf(opened, index, "", `Patch ${index} at full resolution`));
  return link;
}

function imageOf(opened, index, query, alt) {
  const image = make("img");
  Object.assign(image, { alt, decoding: "async", src: addressed(`/patch/${opened.number}/${index}.jpg${query}`) });
  image.addEventListener("error", () => image.replaceWith(make("span", "no-picture", "no pixels")));
  return image;
}

function rowOf(title, opened, others, words) {
  if (!others?.length) return [];
  const row = make("div", "others");
  row.append(...others.map((other) => {
    const score = other.score[state.models[0]];
    const button = makeButton("", `Go to ${nameOf(opened, other.index)}`, () => goTo(other.index));
    button.dataset.instance = other.index;
    button.setAttribute("aria-label", `${nameOf(opened, other.index)}, score ${shortNumber(score)} ${words(other)}`);
    if (opened.info.image) button.append(imageOf(opened, other.index, "?size=96", ""));
    else button.append(make("span", "number", nameOf(opened, other.index)));
    button.append(make("span", "", shortNumber(score)));
    if (words(other)) button.append(make("span", "soft", words(other)));
    return button;
  }));
  return [make("h4", "", title), row];
}
