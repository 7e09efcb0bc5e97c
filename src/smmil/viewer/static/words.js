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
