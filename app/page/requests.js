// Who runs and who waits, and what for.
import { ownerColour, onColours } from "./colours.js";
import { age, byId, count, element, plural, say, time } from "./format.js";

const WAITS = new Set(["waiting", "preempted"]);

/** What one thing is that a request waits for. */
function blocker({ by, needs, left }) {
  switch (by) {
    case "rows":
      return needs === 1 ? "a row of the step" : `${needs} rows of the step, ${left} left`;
    case "blocks":
      return `${plural(needs, "block")}, ${left} left`;
    case "class":
      return needs === 1 && left === 0 ? "its class, which is full" : `its class: ${plural(needs, "block")}, ${left} left`;
    case "hold":
      return `${time(needs)} that the policy holds all back`;
    case "step":
      return "its last token, still computed";
    case "order":
      return `${count(needs)} before it`;
    default:
      return "its turn, by the policy";
  }
}

/** Why a request waits, in a line; empty for one that does not. */
export function reason(request) {
  if (!WAITS.has(request.phase)) return "";
  const start = request.start_in_s;
  const parts = (request.blocked_by ?? []).map(blocker);
  if (request.phase === "preempted") parts.unshift("gave its blocks to others");
  if (start) parts.push(`starts in about ${age(start.estimate)}`);
  return parts.join(" · ");
}

/** What a request is called: by its client, else by the reply. */
export function nameOf(request) {
  const own = request.request_id && !request.request_id.startsWith("req-") ? request.request_id : null;
  return own ?? request.reply_id ?? `request ${request.id}`;
}

const shortened = (name) => (name.length > 19 ? `${name.slice(0, 17)}…` : name);

const total = (counts) => counts.reduce((sum, each) => sum + each, 0);

const words = (read) => ({ read, className: "" });
const number = (read) => ({ read, className: "number" });

const TENANT = words((request) => request.tenant);
const CLASS = words((request) => request.class);
const PROMPT = number((request) => count(request.prompt_tokens));
const AGE = number((request) => age(request.age_s));
const PLACE = number(({ position }) => (position ? `${position.place} of ${position.of}` : "–"));
const RUNNING = [
  TENANT,
  CLASS,
  words((request) => request.phase),
  PROMPT,
  number((request) => count(request.generated_tokens)),
  number((request) => count(total(request.blocks))),
  AGE,
];
const WAITING = [TENANT, CLASS, PROMPT, AGE, PLACE, words(reason)];

/** One table: a row for each request, kept for as long as the request is there. */
class Table {
  constructor(body, columns, empty, { map, mine }) {
    this.body = body;
    this.columns = columns;
    this.empty = empty;
    this.map = map;
    this.mine = mine;
    this.rows = new Map();
    onColours(() => this.rows.forEach(({ dot }, id) => (dot.style.background = ownerColour(id))));
  }

  show(requests) {
    const seen = new Set(requests.map((request) => request.id));
    for (const [id, row] of this.rows) {
      if (!seen.has(id)) {
        row.line.remove();
        this.rows.delete(id);
      }
    }
    this.nobody(requests.length === 0);
    requests.forEach((request, place) => this.place(this.fill(request).line, place));
  }

  place(line, place) {
    const there = this.body.children[place];
    if (there !== line) this.body.insertBefore(line, there ?? null);
  }

  nobody(empty) {
    if (empty && !this.placeholder) {
      const cell = element("td", { colSpan: this.columns.length + 1, className: "quiet" }, this.empty);
      this.placeholder = element("tr", {}, cell);
      this.body.append(this.placeholder);
    } else if (!empty && this.placeholder) {
      this.placeholder.remove();
      this.placeholder = null;
    }
  }

  make(request) {
    const dot = element("span", { className: "owner" });
    dot.style.background = ownerColour(request.id);
    const name = element("span", { className: "name" });
    const cells = this.columns.map(({ className }) => element("td", { className }));
    const line = element("tr", {}, element("th", { scope: "row" }, dot, name), ...cells);
    line.addEventListener("pointerenter", () => this.map.light(request.id));
    line.addEventListener("pointerleave", () => this.map.light(null));
    return { line, dot, name, cells };
  }

  fill(request) {
    if (!this.rows.has(request.id)) this.rows.set(request.id, this.make(request));
    const row = this.rows.get(request.id);
    const full = nameOf(request);
    const mine = this.mine.has(request.request_id);
    say(row.name, mine ? "this chat" : shortened(full));
    if (row.name.title !== full) row.name.title = full;
    row.line.classList.toggle("mine", mine);
    row.dot.classList.toggle("hollow", total(request.blocks) === 0);
    this.columns.forEach(({ read }, at) => say(row.cells[at], read(request)));
    return row;
  }
}

export class RequestTables {
  /** map: lights the blocks of the row that is pointed at. mine: names of this page's requests. */
  constructor(map, mine) {
    const shared = { map, mine };
    this.running = new Table(byId("running"), RUNNING, "Nobody is served right now.", shared);
    this.waiting = new Table(byId("waiting"), WAITING, "Nobody waits.", shared);
  }

  show(live) {
    const waits = live.requests.filter(({ phase }) => WAITS.has(phase));
    const runs = live.requests.filter(({ phase }) => !WAITS.has(phase));
    this.running.show(runs);
    this.waiting.show(waits);
    say(byId("running-says"), shown(runs.length, live.running));
    say(byId("waiting-says"), shown(waits.length, live.waiting));
  }
}

const shown = (some, all) => (all > some ? `the first ${count(some)} of ${count(all)}` : count(all));
