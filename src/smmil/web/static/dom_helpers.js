// Elements and texts that every part of a page uses. Ids and names of models are only ever set as text.
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

/** A bar filled up to a probability. */
export function makeMeter(p) {
  const meter = make("span", "meter");
  const filled = make("span", "filled");
  filled.style.width = `${(p ?? 0) * 100}%`;
  meter.append(filled);
  return meter;
}

export function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => {
    const option = make("option", "", words);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

/** The element after `current` in a list, from the last back to the first. */
export function following(list, current) {
  return list[(list.indexOf(current) + 1) % list.length];
}

/** Move the keyboard focus by some rows of a list; only the focused row takes part in the tab order. */
export function moveFocus(rows, row, by) {
  const next = rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(row) + by))];
  for (const other of rows) other.tabIndex = other === next ? 0 : -1;
  next.focus();
}

/** Numbers of cases by patient, each patient where the first of its cases stands; a case without one by itself. */
export function groupedByPatient(order, patientOf) {
  const groups = new Map();
  for (const number of order) {
    const key = patientOf(number) ?? number;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(number);
  }
  return [...groups.values()];
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** A function that remembers its last `most` promises; failed ones are asked for again. */
export function remembered(most, load) {
  const known = new Map();
  return (key, ...more) => {
    if (!known.has(key)) {
      const asked = load(key, ...more);
      asked.catch(() => known.delete(key));
      known.set(key, asked);
      if (known.size > most) known.delete(known.keys().next().value);
    }
    return known.get(key);
  };
}

export function shortNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : 3);
}

/** A length with its unit: "um" is shown as µm or mm. */
export function lengthText(length, unit) {
  if (unit === "um") return length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
  return `${length.toLocaleString("en")} ${unit}`;
}

/** A length with three digits that count. */
export function roundedLength(length) {
  return Number(length.toPrecision(3));
}

/** The longest of 1, 2, 5, 10, 20 … that is no longer than this. */
export function roundLength(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [5, 2, 1].map((factor) => factor * power).find((length) => length <= most) ?? power;
}

export function labelText(label) {
  return { 1: "lesion", 0: "no lesion" }[label] ?? "unknown";
}

/** Score (or `kind` of number), rank and known label of one instance; label -1: unknown. */
export function scoreText(score, rank, count, label, kind = "score") {
  return `${kind} ${shortNumber(score)} · rank ${rank} of ${count}${label >= 0 ? ` · ${labelText(label)}` : ""}`;
}

/** A share between 0 and 1 in percent, as words of the calibration have it. */
export function percent(share) {
  return share < 0.005 ? "below 1 %" : share > 0.995 ? "above 99 %" : `${Math.round(100 * share)} %`;
}

/** How many instances reach the threshold; nothing without one. */
export function aboveText(threshold, count, total) {
  return Number.isFinite(threshold) ? `≥ ${shortNumber(threshold)}: ${count} of ${total}` : "";
}

/** Style class of an outcome: missed lesions are worse than false alarms. */
export function outcomeClass(outcome) {
  return { "true positive": "correct", "true negative": "correct", "false negative": "missed", "false positive": "false-alarm", unlabelled: "" }[outcome] ?? outcome;
}

/** Light or dark as the system has it, and a button to switch; `redraw` is called after every switch. */
export function prepareTheme(redraw) {
  const root = document.documentElement;
  const set = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    field("theme").textContent = dark ? "Light" : "Dark";
    redraw();
  };
  field("theme").addEventListener("click", () => set(root.dataset.theme !== "dark"));
  set(window.matchMedia("(prefers-color-scheme: dark)").matches);
}

/** A colour of the current theme, such as "--ink". */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The banner of a case that is unlike those the model learned from; hidden without one. */
export function showAlarm(texts) {
  field("case-alarm").textContent = texts.join(" ");
  field("case-alarm").hidden = texts.length === 0;
}
