// Sides of the patient at the edges of a picture.
import { make } from "./dom_helpers.js";

export const OPPOSITE = { L: "R", R: "L", A: "P", P: "A", S: "I", I: "S" };

/** Letters at the left, right, upper and lower edge of a picture whose columns and rows run towards these sides. */
export function sidesOf(across, down) {
  return [OPPOSITE[across], across, OPPOSITE[down], down];
}

export function makeSides(className = "sides") {
  const box = make("div", className);
  box.append(...["left", "right", "top", "bottom"].map((edge) => make("span", `at-${edge}`)));
  return box;
}

export function showSides(box, letters) {
  box.hidden = !letters;
  [...box.children].forEach((span, i) => { span.textContent = letters?.[i] ?? ""; });
}
