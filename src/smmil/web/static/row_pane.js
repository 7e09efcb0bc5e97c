// A case without usable coordinates: its instances from hottest to coldest, by the first model.
import { highest } from "./cells.js";
import { change, state } from "./state.js";
import { ScoreStrip } from "./score_strip.js";
import { make } from "./dom_helpers.js";

export class RowPane {
  constructor(host, opened) {
    Object.assign(this, { host, opened, strips: [], ready: Promise.resolve() });
    host.classList.add("rows-only");
  }

  setModels(pairs) {
    const order = highest(pairs[0][1].values, this.opened.info.instances);
    this.order = order;
    this.close();
    this.host.replaceChildren();
    this.strips = pairs.map(([model, scores]) => {
      const strip = new ScoreStrip(this.host, this.opened, order, "hottest", (place) => change({ patch: order[place] }));
      strip.setModel(model, scores);
      return strip;
    });
    this.host.append(make("p", "readout", "Without coordinates there is no map: instances stand from hottest to coldest."));
  }

  show() {
    const at = state.patch === null ? null : this.order.indexOf(state.patch);
    for (const strip of this.strips) strip.show(at);
  }

  goTo() {}

  zoom() {}

  whole() {}

  close() {
    for (const strip of this.strips) strip.close();
  }
}
