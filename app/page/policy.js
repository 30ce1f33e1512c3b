// Which policy is in charge, with its parameters, and a switch to put another one there.
import { bearer, byId, complaint, element, keys, say } from "./format.js";

const STALE_MS = 1500; // in which documents may come that were made before a swap

/** A parameter as it is typed: JSON, and what is no JSON is text. */
function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const write = (value) => (typeof value === "string" ? value : JSON.stringify(value));

export class PolicyPanel {
  constructor() {
    this.choices = new Map();
    this.current = null;
    this.deafUntil = 0;
    this.select = byId("policy-name");
    this.fields = byId("policy-params");
    this.select.addEventListener("change", () => this.offer());
    byId("policy").addEventListener("submit", (event) => {
      event.preventDefault();
      this.swap();
    });
  }

  /** Ask which policies there are. */
  async open() {
    const reply = await fetch("admin/policy", { headers: bearer(keys.get("admin-key")) });
    if (!reply.ok) return;
    const told = await reply.json();
    this.choices = new Map(told.allowed.map(({ policy, params }) => [policy, params]));
    if (!this.choices.has(told.policy)) this.choices.set(told.policy, told.params);
    const options = [...this.choices.keys()].map((name) => element("option", { value: name }, name));
    this.select.replaceChildren(...options);
    this.current = null;
    this.show(told);
  }

  /** What a document says that may be older than a swap. */
  follow(told) {
    if (performance.now() > this.deafUntil) this.show(told);
  }

  /** What the server says is in charge; what somebody is choosing right now stays as it is. */
  show({ policy, params, fallen_back, last_fault, faults, forced_admissions }) {
    const now = JSON.stringify([policy, params]);
    if (now !== this.current && this.choices.size) {
      this.current = now;
      this.inCharge = { policy, params };
      this.select.value = policy;
      this.offer();
    }
    const given = Object.entries(params).map(([name, value]) => `${name} ${write(value)}`);
    const words = [policy + (given.length ? ` (${given.join(", ")})` : "")];
    if (fallen_back) words.push(`fcfs stands in for it: ${last_fault}`);
    if (faults) words.push(`${faults} faults`);
    if (forced_admissions) words.push(`${forced_admissions} admissions by the guard`);
    say(byId("policy-says"), words.join(" · "));
  }

  /** Fields for the parameters of the policy that is chosen. */
  offer() {
    const name = this.select.value;
    const given = name === this.inCharge?.policy ? this.inCharge.params : {};
    const known = { ...this.choices.get(name), ...given };
    const fields = Object.entries(known).map(([param, value]) => this.field(param, value));
    this.fields.replaceChildren(...fields);
  }

  field(param, value) {
    const input = element("input", { type: "text", name: param, value: write(value), spellcheck: false });
    input.autocomplete = "off";
    return element("label", {}, param, input);
  }

  /** Those that are not as the policy has them by itself. */
  params() {
    const usual = this.choices.get(this.select.value) ?? {};
    const typed = [...this.fields.querySelectorAll("input")].map(({ name, value }) => [name, read(value)]);
    return Object.fromEntries(typed.filter(([name, value]) => write(value) !== write(usual[name] ?? null)));
  }

  async swap() {
    const button = byId("policy-swap");
    const news = byId("policy-news");
    button.disabled = true;
    try {
      const reply = await fetch("admin/policy", {
        method: "POST",
        headers: { "content-type": "application/json", ...bearer(keys.get("admin-key")) },
        body: JSON.stringify({ policy: this.select.value, params: this.params() }),
      });
      news.classList.toggle("error", !reply.ok);
      if (!reply.ok) return say(news, await complaint(reply));
      const { old, new: taken, step, fault } = await reply.json();
      this.deafUntil = performance.now() + STALE_MS;
      this.show({ ...taken, faults: 0, forced_admissions: 0 });
      const trouble = fault ? ` fcfs stands in for it: ${fault}` : "";
      say(news, `${taken.policy} took over from ${old.policy} at step ${step}.${trouble}`);
    } catch (error) {
      news.classList.add("error");
      say(news, `Nothing was swapped: ${error.message}`);
    } finally {
      button.disabled = false;
    }
  }
}
