// The live view: asks for the engine's document twice a second while somebody looks.
import { BlockMap } from "./blocks.js";
import { openCharts } from "./charts.js";
import { ExperimentPanel } from "./experiment.js";
import { bearer, byId, complaint, count, element, keys, say, time } from "./format.js";
import { PolicyPanel } from "./policy.js";
import { RequestTables, nameOf } from "./requests.js";
import { ShadowPanel } from "./shadow.js";

const EVERY_MS = 500;
const AGAIN_MS = 3000; // after the server did not answer

/** Of the last three seconds: single ones jump about. */
function mean(values) {
  const recent = values.slice(-3);
  return recent.reduce((sum, each) => sum + each, 0) / Math.max(1, recent.length);
}

class Live {
  constructor(mine) {
    this.map = new BlockMap();
    this.tables = new RequestTables(this.map, mine);
    this.policy = new PolicyPanel();
    this.experiment = new ExperimentPanel();
    this.shadow = new ShadowPanel();
    this.charts = openCharts();
    this.round = 0;
    this.paused = false;
  }

  /** Show the engine to who has the key; the door is open from the first answer on. */
  async enter(key) {
    keys.set("admin-key", key);
    const round = ++this.round;
    say(byId("door-error"), "");
    try {
      const live = await this.ask();
      byId("door").hidden = true;
      for (const id of ["live", "lock", "pause", "state"]) byId(id).hidden = false;
      this.show(live);
      await this.policy.open();
      this.follow(round);
    } catch (error) {
      this.leave();
      say(byId("door-error"), error.message);
    }
  }

  leave() {
    this.round++;
    keys.set("admin-key", "");
    byId("door").hidden = false;
    for (const id of ["live", "lock", "pause", "state"]) byId(id).hidden = true;
  }

  async ask() {
    const reply = await fetch("admin/live", { headers: bearer(keys.get("admin-key")) });
    if (reply.ok) return reply.json();
    if (reply.status === 404) throw new Error("No admin key is set on this server.");
    const wrong = reply.status === 401 ? "That is not the admin key of this server." : await complaint(reply);
    throw Object.assign(new Error(wrong), { final: reply.status === 401 });
  }

  /** Round after round, one at a time; not while the page is out of sight. */
  async follow(round) {
    while (round === this.round) {
      await this.moment(EVERY_MS);
      if (this.paused || document.hidden || round !== this.round) continue;
      try {
        const live = await this.ask();
        if (round === this.round && !this.paused) this.show(live);
      } catch (error) {
        if (error.final) return this.leave();
        this.state("lost", "not answering");
        await this.moment(AGAIN_MS);
      }
    }
  }

  moment(milliseconds) {
    return new Promise((done) => setTimeout(done, milliseconds));
  }

  state(kind, words) {
    byId("state").dataset.kind = kind;
    say(byId("state-words"), words);
  }

  show(live) {
    this.state("live", "live");
    const names = new Map(live.requests.map((request) => [request.id, nameOf(request)]));
    this.map.show(live, names);
    this.tables.show(live);
    this.policy.follow(live.policy);
    this.experiment.show(live.experiment);
    this.shadow.show(live.shadow);
    this.tiles(live);
    this.charts(live);
    this.classes(live.classes);
  }

  tiles({ running, waiting, waiting_by_class, requests, blocks, seconds }) {
    const last = (values) => values.at(-1) ?? null;
    const prefills = requests.filter(({ phase }) => phase === "prefill").length;
    const queues = Object.entries(waiting_by_class).filter(([, waits]) => waits > 0);
    const share = blocks.total ? Math.round((100 * blocks.owned) / blocks.total) : 0;
    this.tile("running", count(running), `${count(prefills)} in prefill`);
    this.tile("waiting", count(waiting), queues.map(([name, waits]) => `${count(waits)} ${name}`).join(", ") || "nobody");
    this.tile("rate", count(mean(seconds.generated_tokens)), `prompt ${count(mean(seconds.prompt_tokens))}`);
    this.tile("blocks", `${share}%`, `${count(blocks.owned)} of ${count(blocks.total)}`);
    this.tile("ttft", time(last(seconds.ttft_s.p50)), `p95 ${time(last(seconds.ttft_s.p95))}`);
    this.tile("itl", time(last(seconds.itl_s.p50)), `p95 ${time(last(seconds.itl_s.p95))}`);
  }

  tile(name, value, beside) {
    const node = byId(`tile-${name}`);
    if (node.dataset.shown === value + beside) return;
    node.dataset.shown = value + beside;
    node.replaceChildren(value, element("small", {}, beside));
  }

  classes(names) {
    const list = byId("classes");
    if (list.children.length !== names.length) {
      list.replaceChildren(...names.map((name) => element("option", { value: name })));
    }
  }
}

/** Make the engine's side of the page work. mine: names of this page's requests. */
export function openLive(mine) {
  const live = new Live(mine);
  const field = byId("admin-key");
  byId("door").addEventListener("submit", async (event) => {
    event.preventDefault();
    await live.enter(field.value.trim());
    field.value = "";
  });
  byId("lock").addEventListener("click", () => {
    live.leave();
    field.focus();
  });
  const pause = byId("pause");
  pause.addEventListener("click", () => {
    live.paused = !live.paused;
    pause.setAttribute("aria-pressed", String(live.paused));
    if (live.paused) live.state("paused", "paused");
  });
  const kept = keys.get("admin-key");
  if (kept) live.enter(kept);
}
