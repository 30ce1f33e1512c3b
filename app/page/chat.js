// The chat: what is asked, the answer as it comes, and how long it took.
import { byId, count, element, keys, say, time } from "./format.js";
import { complete } from "./stream.js";

const NEAR = 60; // pixels from the end within which the conversation follows the answer

/** What the fields say, as a request has it. */
function sampling() {
  const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
  return {
    temperature: number("temperature"),
    top_p: number("top-p"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
    service_tier: byId("tier").value.trim() || undefined,
  };
}

/** Times of one answer, taken where the tokens arrive. */
class Stopwatch {
  constructor() {
    this.start = performance.now();
    this.first = null;
    this.last = null;
    this.tokens = 0;
    this.firstTokens = 0;
  }

  /** Book a chunk; tokens: how many there are by now. */
  see(tokens) {
    if (!tokens || tokens === this.tokens) return;
    this.tokens = tokens;
    this.last = performance.now();
    if (this.first === null) {
      this.first = this.last;
      this.firstTokens = tokens;
    }
  }

  get ttft() {
    return this.first === null ? null : (this.first - this.start) / 1000;
  }

  /** Mean seconds between two tokens; null of fewer than two that came apart. */
  get itl() {
    const gaps = this.tokens - this.firstTokens;
    return gaps > 0 ? (this.last - this.first) / 1000 / gaps : null;
  }
}

class Chat {
  constructor() {
    this.history = [];
    this.stopper = null;
    this.names = new Set();
    this.list = byId("messages");
  }

  get messages() {
    const system = byId("system").value.trim();
    return [...(system ? [{ role: "system", content: system }] : []), ...this.history];
  }

  /** A name for a request, by which it is known again among others'. */
  name() {
    const [number] = crypto.getRandomValues(new Uint32Array(1));
    const name = `chat-${number.toString(36)}`;
    this.names.add(name);
    return name;
  }

  clear() {
    this.stopper?.abort();
    this.history = [];
    this.list.replaceChildren(byId("empty") ?? this.empty);
    byId("prompt").focus();
  }

  async ask(text) {
    this.empty ??= byId("empty");
    this.empty.remove();
    const history = this.history;
    history.push({ role: "user", content: text });
    this.add("user", "You", text);
    const { body, facts, article } = this.add("assistant", "Answer", "");
    this.busy(true);
    const stopper = (this.stopper = new AbortController());
    const watch = new Stopwatch();
    const answer = { text: "", finish: null, stopped: false, failure: null, last: null };
    article.classList.add("writing");
    try {
      const asked = { messages: this.messages, ...sampling() };
      for await (const chunk of complete(asked, this.name(), keys.get("api-key"), stopper.signal)) {
        watch.see(chunk.tokens);
        answer.finish = chunk.finish ?? answer.finish;
        if (chunk.tokens !== undefined) answer.last = chunk;
        if (chunk.text) this.grow(body, (answer.text += chunk.text));
        this.tell(facts, watch, answer);
      }
    } catch (error) {
      answer.stopped = stopper.signal.aborted;
      if (!answer.stopped) answer.failure = error.message || "The connection was lost.";
    }
    article.classList.remove("writing");
    this.close(answer, watch, facts, article, history);
    if (this.stopper === stopper) this.busy(false);
  }

  /** The end of an answer; history: of the chat that it belongs to, which may be over. */
  close(answer, watch, facts, article, history) {
    if (answer.failure) {
      article.append(element("p", { className: "error", role: "alert" }, answer.failure));
    } else {
      say(byId("chat-news"), `${answer.stopped ? "Stopped" : "Answer"}: ${answer.text}`);
    }
    this.tell(facts, watch, answer);
    // What was not answered is not said again.
    if (answer.text) history.push({ role: "assistant", content: answer.text });
    else history.pop();
  }

  add(role, name, text) {
    const body = element("div", { className: "text" }, text);
    const facts = element("p", { className: "facts numbers" });
    const title = element("h3", {}, name);
    const article = element("article", { className: `message ${role}` }, title, body, facts);
    this.list.append(article);
    this.list.scrollTop = this.list.scrollHeight;
    return { body, facts, article };
  }

  /** More text; who has scrolled up to read is left there. */
  grow(body, text) {
    const list = this.list;
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR;
    body.textContent = text;
    if (follows) list.scrollTop = list.scrollHeight;
  }

  tell(facts, watch, answer) {
    const rate = watch.itl ? `${(1 / watch.itl).toFixed(1)} tokens/s` : null;
    const cached = answer.last?.cached ? `, ${count(answer.last.cached)} of them cached` : "";
    const said = [
      watch.ttft !== null && ["first token", time(watch.ttft)],
      watch.itl !== null && ["between tokens", time(watch.itl)],
      rate && ["", rate],
      watch.tokens > 0 && ["tokens", count(watch.tokens)],
      answer.last?.prompt && ["prompt", `${count(answer.last.prompt)}${cached}`],
      answer.stopped && ["", "stopped"],
      answer.finish === "length" && ["", "cut at the limit"],
    ].filter(Boolean);
    facts.replaceChildren(
      ...said.map(([name, value]) =>
        element("span", {}, name && `${name} `, element("b", {}, value)),
      ),
    );
  }

  busy(now) {
    byId("stop").hidden = !now;
    byId("send").hidden = now;
    if (now) say(byId("chat-news"), "An answer is being written.");
    else {
      this.stopper = null;
      if (document.activeElement === document.body) byId("prompt").focus();
    }
  }
}

/** Make the chat work; what is returned knows the names of its requests. */
export function openChat() {
  const chat = new Chat();
  const prompt = byId("prompt");
  const send = () => {
    const text = prompt.value.trim();
    if (!text || chat.stopper) return;
    prompt.value = "";
    chat.ask(text);
  };
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  byId("stop").addEventListener("click", () => {
    chat.stopper?.abort();
    prompt.focus();
  });
  byId("new-chat").addEventListener("click", () => chat.clear());
  byId("starters").addEventListener("click", (event) => {
    if (event.target.tagName === "BUTTON" && !chat.stopper) {
      chat.ask(event.target.textContent);
      prompt.focus();
    }
  });
  for (const id of ["temperature", "top-p"]) {
    byId(id).addEventListener("input", () => say(byId(`${id}-says`), byId(id).value));
  }
  byId("sampling").addEventListener("submit", (event) => event.preventDefault());
  const key = byId("api-key");
  key.value = keys.get("api-key");
  key.addEventListener("input", () => keys.set("api-key", key.value.trim()));
  return chat;
}
