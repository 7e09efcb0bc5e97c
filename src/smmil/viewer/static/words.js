// Elements and words that every part of the page uses. Ids and names of models are only ever set as text.
export const field = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function makeButton(text, title, action) {
  const button = make("button", "", text);
  button.type = "button";
  if (title) button.title = title;
  button.addEventListener("click", action);
  return button;
}

export function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => {
    const option = make("option", "", words);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

export function shortNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : 3);
}

export function lengthWords(length, micrometres) {
  if (!micrometres) return `${length.toLocaleString("en")} px`;
  return length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
}

/** The longest of 1, 2, 5, 10, 20 … that is no longer than this. */
export function roundLength(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [5, 2, 1].map((factor) => factor * power).find((length) => length <= most) ?? power;
}

export function labelWords(label) {
  return { 1: "lesion", 0: "no lesion" }[label] ?? "unknown";
}

/** One of the report's classes for an outcome, so that mistakes have the same colours here. */
export function outcomeClass(outcome) {
  if (outcome === "missed" || outcome === "false negative") return "missed";
  if (outcome === "false alarm" || outcome === "false positive") return "false-alarm";
  return outcome === "wrong" ? "wrong" : outcome === "unlabelled" ? "" : "correct";
}

/** Say something to readers who do not see the screen. */
export function say(text) {
  field("said").textContent = text;
}

/** A calm line above everything; nothing takes it away again. */
export function note(text) {
  field("notice-text").textContent = text;
  field("notice").hidden = text === "";
}
