// A live experiment: which arm is in charge, and what each was found to change.
import { byId, change, element, plural, say, share, time, told } from "./format.js";

const MEASURES = {
  ttft_s: ["time to first token", time],
  itl_s: ["between tokens", time],
  itl_p99_s: ["between tokens, p99", time],
  output_tok_s: ["tokens/s", (value) => value.toFixed(1)],
  attained: ["targets met", share],
  failed: ["failed", share],
};

export class ExperimentPanel {
  constructor() {
    this.shown = "";
  }

  /** What a document says of it; null where none is configured. */
  show(experiment) {
    byId("experiment").hidden = !experiment;
    if (!experiment) return;
    say(byId("experiment-says"), this.words(experiment));
    const { arms, comparisons } = experiment;
    const now = JSON.stringify([arms, comparisons]);
    if (now === this.shown) return;
    this.shown = now;
    byId("experiment-rows").replaceChildren(...comparisons.flatMap((each) => this.rows(each, arms)));
  }

  /** Arms whose policy did wrong: what stood in for it is what was measured. */
  faulty(arms) {
    const wrong = arms.filter(({ faults }) => faults > 0);
    const words = ({ arm, faults, fallback_steps: steps }) =>
      ` · ${plural(faults, "fault")} of ${arm}'s policy` + (steps ? `, fcfs did ${plural(steps, "step")}` : "");
    return wrong.map(words).join("");
  }

  words({ arms, over, in_charge, washout, next_turn_in_s, blocks, level }) {
    const complete = `${plural(blocks, "block")} complete, intervals of ${Math.round(100 * level)}% at all times${this.faulty(arms)}`;
    if (over) return `over: ${over} · ${complete}`;
    const phase = washout ? "washout" : "measuring";
    return `${in_charge ?? "–"} in charge, ${phase}, ${time(next_turn_in_s)} left · ${complete}`;
  }

  rows({ arm, against, measures }, arms) {
    const means = (name) => arms.find((each) => each.arm === name).means;
    const [base, other] = [means(against), means(arm)];
    return Object.entries(measures).map(([measure, found], place) => {
      const [words, write] = MEASURES[measure] ?? [measure, String];
      const between = "change" in found ? `${change(found.low, "−∞")} … ${change(found.high, "+∞")}` : "–";
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, place ? "" : arm),
        element("td", {}, words),
        element("td", { className: "number" }, told(base[measure], write)),
        element("td", { className: "number" }, told(other[measure], write)),
        element("td", { className: "number" }, "change" in found ? change(found.change, "∞") : "–"),
        element("td", {}, between),
        element("td", { className: `verdict ${found.verdict}` }, found.verdict),
      );
    });
  }
}
