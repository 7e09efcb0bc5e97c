// Scores of one model in a row: slices of a scan, or instances from hottest to coldest.
import { BarStrip } from "./bars.js";
import { rankOf } from "./cells.js";
import { facts } from "./facts.js";
import { aboveThreshold, howFor } from "./display_settings.js";
import { makeLegend, paintLegend } from "./paint.js";
import { make, scoreText, themeColour } from "./dom_helpers.js";

const LAYOUT = { top: 8, below: 8, band: 12, gap: 4, labelled: [0, 1], fades: false };

export class ScoreStrip extends BarStrip {
  /** `order[place]` is the instance at a place or undefined; `word` names a place; `choose` is called with a place. */
  constructor(host, opened, order, word, choose) {
    super("strip-stage", LAYOUT);
    Object.assign(this, { opened, places: order, word, current: null });
    const head = make("header");
    this.title = make("h3");
    this.legend = makeLegend();
    this.above = make("span", "above");
    this.kind = make("span", "score-kind");
    head.append(this.title, this.kind, this.above, this.legend);
    this.readout = make("span", "pointed");
    this.stage.append(this.readout);
    host.append(head, this.stage);
    this.canvas.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      if (place !== null) choose(place);
    });
  }

  /** labels: truth in the band, by instance. */
  setModel(model, scores, labels = this.opened.truth) {
    Object.assign(this, { model, scores, series: { ...scores, labels } });
    this.title.textContent = facts.models[model].name;
    this.kind.textContent = facts.models[model].score_kind;
    this.canvas.setAttribute("aria-label", `Scores of ${this.opened.entry.id} by ${facts.models[model].name}`);
  }

  show(current) {
    this.current = current;
    this.how = howFor(this.model, this.scores);
    this.above.textContent = aboveThreshold(this.scores.values, this.how.threshold);
    paintLegend(this.legend, this.how);
    this.draw();
  }

  /** The current place, behind the bars. */
  drawBelow(pen, height) {
    if (this.current === null) return;
    const wide = Math.max(3, this.wide);
    const x = this.middle(this.current) - wide / 2;
    pen.fillStyle = themeColour("--accent");
    pen.globalAlpha = 0.28;
    pen.fillRect(x, 0, wide, height);
    pen.globalAlpha = 1;
    pen.fillRect(x, 0, wide, 3);
  }

  read(event) {
    const place = this.placeAt(event);
    this.readout.textContent = place === null ? "" : `${this.word} ${place + 1} · ${this.words(place)}`;
  }

  words(place) {
    const instance = this.places[place];
    if (instance === undefined) return "no score";
    const score = this.scores.values[instance];
    return scoreText(score, rankOf(this.scores.sorted, score), this.opened.info.instances, this.opened.truth?.[instance] ?? -1);
  }
}
