// One case, large: one or two panes and the keys to move around.
const dialog = document.getElementById("case");
const shown = { number: null, panes: [], turn: 0 };

function openCase(number) {
  shown.number = number;
  const entry = DATA.cases[number];
  if (entry.said[settings.left] === null) settings.left = entry.said.findIndex((said) => said !== null);
  field("left-model").value = String(settings.left);
  field("case-title").textContent = entry.id;
  const place = table.order.indexOf(number);
  field("previous").disabled = place <= 0;
  field("next").disabled = place < 0 || place >= table.order.length - 1;
  if (!dialog.open) dialog.showModal();
  const focused = document.activeElement; // a button that has just been switched off would take the keys with it
  if (!dialog.contains(focused) || focused.disabled) field("close").focus();
  return drawPanes();
}

function caseWords(entry) {
  const label = entry.y === null ? "label unknown" : `label ${entry.y}`;
  const models = [settings.left, settings.right].filter((m) => m !== null && entry.said[m] !== null);
  const said = models.map((m) => {
    const { p, answer, outcome } = entry.said[m];
    const chance = DATA.models[m].classes > 2 ? `class ${answer} with ${p.toFixed(3)}` : `P(positive) ${p.toFixed(3)}`;
    return `${DATA.models[m].name}: ${chance}, ${outcome}`;
  });
  return [label, ...said].join("  ·  ");
}

/** Build the panes anew: another case or other models. A later call overtakes an earlier one. */
async function drawPanes() {
  if (shown.number === null) return;
  const turn = ++shown.turn;
  const entry = DATA.cases[shown.number];
  const models = [settings.left, settings.right].filter((m, i) => m !== null && (i === 0 || m !== settings.left));
  const present = models.filter((m) => entry.said[m] !== null);
  const loaded = await Promise.all(present.map((m) => cellsOf(shown.number, m)));
  if (turn !== shown.turn) return;
  closePanes();
  field("case-facts").textContent = caseWords(entry);
  const hosts = present.map(hostOf); // all of them first, so that every pane opens at its final size
  field("panes").classList.toggle("stacked", loaded.some((cells) => !isFlat(cells)));
  shown.panes = present.map((m, i) => paneOf(hosts[i], m, loaded[i]));
  if (shown.panes.length === 2 && shown.panes.every((p) => p instanceof SlidePane)) linkZoom(...shown.panes);
  drawNotes(entry, models);
  change({});
  await Promise.all(shown.panes.map((pane) => pane.ready));
  showPanes();
  dialog.dataset.ready = `${shown.number}:${present.join(",")}`;
}

function hostOf(model) {
  const host = make("section", "pane");
  const head = make("header");
  head.append(make("h3", "", DATA.models[model].name), legendOf());
  host.append(head);
  field("panes").append(host);
  return host;
}

function paneOf(host, model, cells) {
  const kinds = { map: SlidePane, points: PointsPane };
  const pane = new (kinds[cells.kind] || StripPane)(host, shown.number, model, cells);
  pane.host = host;
  return pane;
}

function legendOf() {
  const legend = make("div", "colour-legend");
  legend.append(make("span", "low"), make("canvas", "colour-bar"), make("span", "high"), make("span", "above"));
  return legend;
}

function drawNotes(entry, models) {
  const missing = models.filter((m) => entry.said[m] === null).map((m) => `${DATA.models[m].name} has no prediction of this case`);
  const picture = [...(entry.missing ? [`no picture: ${entry.missing}`] : []), ...(entry.damage ? [entry.damage] : [])];
  const notes = [...picture, ...shown.panes.flatMap((pane) => pane.cells.notes)];
  const truth = shown.panes.some((pane) => pane.cells.truth) ? [] : ["no instance label is known: no outline"];
  field("case-notes").replaceChildren(...[...new Set([...missing, ...notes, ...truth])].map((n) => make("li", "", n)));
}

function showPanes() {
  for (const pane of shown.panes) {
    const how = howFor(pane);
    pane.show(how);
    paintLegend(pane, how);
  }
}

function paintLegend(pane, how) {
  const bar = pane.host.querySelector(".colour-bar");
  bar.width = 256;
  bar.height = 1;
  const pen = bar.getContext("2d");
  const image = pen.createImageData(256, 1);
  for (let i = 0; i < 256; i++) image.data.set([...how.palette.slice(3 * i, 3 * i + 3), 255], 4 * i);
  pen.putImageData(image, 0, 0);
  pane.host.querySelector(".low").textContent = shortNumber(how.limits[0]);
  pane.host.querySelector(".high").textContent = shortNumber(how.limits[1]);
  const above = Number.isFinite(how.threshold) ? `≥ ${shortNumber(how.threshold)}: ${pane.shown} of ${pane.cells.cells}` : "";
  pane.host.querySelector(".above").textContent = above;
}

function closePanes() {
  delete dialog.dataset.ready;
  for (const pane of shown.panes) pane.close();
  shown.panes = [];
  field("panes").replaceChildren();
}

function step(by) {
  const next = table.order[table.order.indexOf(shown.number) + by];
  if (next !== undefined) openCase(next);
}

function closed() {
  const row = [...body.rows].find((r) => Number(r.dataset.case) === shown.number);
  shown.turn++;
  closePanes();
  shown.number = null;
  if (row) moveRow(row, 0);
}

function caseKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  const actions = {
    n: () => step(1), p: () => step(-1), h: () => change({ heat: !settings.heat }),
    t: () => change({ truth: !settings.truth }), c: nextPalette,
    "+": () => zoomAll(1.5), "=": () => zoomAll(1.5), "-": () => zoomAll(1 / 1.5), 0: wholeAll,
  };
  if (!(event.key in actions)) return;
  actions[event.key]();
  event.preventDefault();
  event.stopPropagation(); // OpenSeadragon has keys of its own
}

function zoomAll(factor) {
  const leader = shown.panes.find((pane) => pane.leads);
  if (leader) leader.zoom(factor);
  else shown.panes.forEach((pane) => pane.zoom(factor));
}

function wholeAll() {
  const leader = shown.panes.find((pane) => pane.leads);
  for (const pane of leader ? [leader] : shown.panes) pane.whole();
}
