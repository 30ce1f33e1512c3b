// Numbers and times as people read them, and elements made of text.

const whole = new Intl.NumberFormat("en");

/** 12,345; a dash for what is not known. */
export const count = (value) => (value == null ? "–" : whole.format(Math.round(value)));

/** Seconds as 840 µs, 12 ms, 1.24 s, 3:05 min. */
export function time(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")} min`;
}

/** Seconds for a table that changes all the time: 4.2 s, 71 s. */
export const age = (seconds) => (seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`);

/** "1 block", "2 blocks". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** 0.12 as 12.0%. */
export const share = (value) => `${(100 * value).toFixed(1)}%`;

/** A relative change; null is as far as it goes. */
export function change(value, otherwise) {
  if (value === null || value === undefined) return otherwise;
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}%`;
}

/** A value as `write` says it; a dash for what is not known. */
export const told = (value, write) => (value === null || value === undefined ? "–" : write(value));

/** An element with properties, and children that are elements or text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child != null));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set a text only if it is another one: what does not change is not announced again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A key of this tab, kept until it is closed. */
export const keys = {
  get(name) {
    try {
      return sessionStorage.getItem(`octavo-${name}`) ?? "";
    } catch {
      return "";
    }
  },
  set(name, value) {
    try {
      if (value) sessionStorage.setItem(`octavo-${name}`, value);
      else sessionStorage.removeItem(`octavo-${name}`);
    } catch {
      // No storage in here: the field has it until the page is left.
    }
  },
};

/** Headers that show a key, if there is one. */
export const bearer = (key) => (key ? { authorization: `Bearer ${key}` } : {});

/** What a reply that is no success says, in a sentence. */
export async function complaint(reply) {
  let message = `${reply.status} ${reply.statusText}`.trim();
  try {
    message = (await reply.json()).error.message ?? message;
  } catch {
    // No JSON: from a proxy. The status must do.
  }
  const wait = reply.headers.get("retry-after");
  return wait ? `${message} Try again in ${wait} s.` : message;
}
