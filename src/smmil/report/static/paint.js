// Cells to pixels and outlines.

/** One pixel per cell: colour by score, transparent without tissue and below the threshold. Gives the cells shown. */
function paintHeat(canvas, cells, limits, palette, threshold) {
  canvas.width = cells.columns;
  canvas.height = cells.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(cells.columns, cells.rows);
  let shown = 0;
  for (let cell = 0; cell < cells.scores.length; cell++) {
    const score = cells.scores[cell];
    if (!(score >= threshold)) continue;
    shown++;
    const colour = colourIndex(score, limits) * 3;
    image.data.set([palette[colour], palette[colour + 1], palette[colour + 2], 255], cell * 4);
  }
  context.putImageData(image, 0, 0);
  return shown;
}

function colourIndex(score, limits) {
  const share = (score - limits[0]) / (limits[1] - limits[0]);
  return Math.max(0, Math.min(255, Math.round(share * 255)));
}

/** The tissue as plain paper, for cases without a picture of the slide. */
function paintTissue(cells, world, colour) {
  const canvas = document.createElement("canvas");
  const perPixel = Math.max(world.width, world.height) / 1024;
  canvas.width = Math.max(1, Math.round(world.width / perPixel));
  canvas.height = Math.max(1, Math.round(world.height / perPixel));
  const context = canvas.getContext("2d");
  context.fillStyle = colour;
  const [left, top, right, bottom] = cells.extent;
  const wide = (right - left) / cells.columns;
  const high = (bottom - top) / cells.rows;
  cells.scores.forEach((score, cell) => {
    if (Number.isNaN(score)) return;
    const x = (left + (cell % cells.columns) * wide - world.x) / perPixel;
    const y = (top + Math.floor(cell / cells.columns) * high - world.y) / perPixel;
    context.fillRect(x, y, wide / perPixel + 0.5, high / perPixel + 0.5);
  });
  return canvas;
}

/** SVG path around the positive cells, in cells. */
function truthPath(cells) {
  const inside = (row, column) =>
    row >= 0 && column >= 0 && row < cells.rows && column < cells.columns &&
    cells.known[row * cells.columns + column] === 1;
  const pieces = [];
  for (let row = 0; row <= cells.rows; row++) {
    for (let column = 0; column <= cells.columns; column++) {
      if (inside(row, column) !== inside(row - 1, column)) pieces.push(`M${column} ${row}h1`);
      if (inside(row, column) !== inside(row, column - 1)) pieces.push(`M${column} ${row}v1`);
    }
  }
  return pieces.join("");
}

/** A small heat map for the table, whole and centred. */
function paintThumbnail(canvas, cells, limits, palette) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  if (cells.kind === "points") {
    paintDotThumbnail(canvas, cells, limits, palette);
    return;
  }
  const small = document.createElement("canvas");
  paintHeat(small, cells, limits, palette, -Infinity);
  const [left, top, right, bottom] = cells.extent;
  const flat = cells.kind !== "map";
  const shape = flat ? canvas.width / canvas.height : (right - left) / (bottom - top);
  const width = Math.min(canvas.width, canvas.height * shape);
  const height = flat ? canvas.height * 0.6 : width / shape;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = small.width > canvas.width;
  context.drawImage(small, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}
