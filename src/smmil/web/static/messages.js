// Messages of the viewer that are no errors.
import { field } from "./dom_helpers.js";

/** Announce something to readers who do not see the screen. */
export function announce(text) {
  field("announcement").textContent = text;
}

/** A line above everything that stays until it is dismissed. */
export function note(text) {
  field("notice-text").textContent = text;
  field("notice").hidden = text === "";
}
