// Shadow policies: what others would have done with the traffic of late, and whether to believe it.
import { age, byId, change, count, element, plural, say, share, time, told } from "./format.js";

const MEASURES = {
  ttft_s: ["time to first token", time],
  itl_s: ["between tokens", time],
  itl_p99_s: ["between tokens, p99", time],
  e2e_s: ["whole answer", time],
  output_tok_s: ["tokens/s", (value) => value.toFixed(1)],
  shed: ["refused", count],
};

export class ShadowPanel {
  constructor() {
    this.shown = "";
  }

  /** What a document says of them; null where none are configured. */
  show(shadow) {
    byId("shadow").hidden = !shadow;
    if (!shadow) return;
    say(byId("shadow-says"), this.words(shadow));
    say(byId("shadow-doubts"), shadow.trusted ? "" : `Not to be trusted: ${shadow.doubts.join("; ")}.`);
    byId("shadow-table").classList.toggle("untrusted", !shadow.trusted);
    const { latest, policies } = shadow;
    if (`${shadow.windows}` === this.shown) return;
    this.shown = `${shadow.windows}`;
    byId("shadow-rows").replaceChildren(...(latest ? policies.flatMap((each) => this.rows(each, latest)) : []));
  }

  words({ latest, windows, skipped, scoring, window_s }) {
    const said = [`${plural(windows, "window")} of ${time(window_s)} scored`];
    if (latest) {
      said.push(`the latest ${age(latest.ago_s)} ago, ${plural(latest.requests, "request")} under ${latest.policy}`);
      const errors = Object.entries(latest.errors);
      said.push(...errors.map(([measure, { error, stated }]) => this.error(measure, error, stated)));
    }
    if (scoring) said.push("scoring");
    if (skipped) said.push(`not scored: ${skipped}`);
    return said.join(" · ");
  }

  error(measure, error, stated) {
    const [words] = MEASURES[measure] ?? [measure];
    return `${words} off by ${change(error, "∞")}, stated ±${told(stated, share)}`;
  }

  rows({ name, fault, measures }, { real, predicted }) {
    const head = (place) => element("th", { scope: "row" }, place ? "" : name);
    if (!measures) return [element("tr", {}, head(0), element("td", { colSpan: 5 }, fault ?? "–"))];
    return Object.entries(measures).map(([measure, { value, change: by, clear }], place) => {
      const [words, write] = MEASURES[measure] ?? [measure, String];
      return element(
        "tr",
        {},
        head(place),
        element("td", {}, words),
        element("td", { className: "number" }, told(real[measure], write)),
        element("td", { className: "number" }, told(predicted[measure], write)),
        element("td", { className: "number" }, told(value, write)),
        element("td", { className: clear ? "number" : "number quiet" }, change(by, "–")),
      );
    });
  }
}
