// Slices of a scan as numbers, Hounsfield units for CT, and the window that makes them visible.
import { askNumbers } from "./server.js";
import { remembered } from "./dom_helpers.js";

const MOST_SLICES = 96;
const loadSlice = remembered(MOST_SLICES, (url, Kind, count) => askNumbers(url, Kind, count));

/** Values of one slice, HU where the scan has them; asked for once. */
export function sliceOf(number, k, { rows, columns, numbers }) {
  return loadSlice(`/slice/${number}/${k}`, numbers === "float32" ? Float32Array : Int16Array, rows * columns);
}

/** Grey values: black at centre - width/2 and below, white at centre + width/2 and above, linear between. */
export function paintSlice(canvas, hu, rows, columns, [centre, width]) {
  [canvas.width, canvas.height] = [columns, rows];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  const low = centre - width / 2;
  for (let i = 0; i < hu.length; i++) {
    const shade = Math.round(Math.max(0, Math.min(1, (hu[i] - low) / width)) * 255);
    image.data[4 * i] = image.data[4 * i + 1] = image.data[4 * i + 2] = shade;
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}

/** Centre and width from a name of the server's table or from "40/80"; the first of the table when neither. */
export function windowOf(text, table) {
  if (Object.hasOwn(table, text ?? "")) return table[text];
  const [centre, width] = (text ?? "").split("/").map(Number);
  return Number.isFinite(centre) && width > 0 ? [centre, width] : Object.values(table)[0] ?? [40, 80];
}
