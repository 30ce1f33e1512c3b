// Colours as a canvas needs them: resolved, for the theme that is on.
import { byId, say } from "./format.js";

const THEMES = ["auto", "light", "dark"];
const WORDS = {
  auto: ["Theme: auto", "Colours: as the system has them"],
  light: ["Theme: light", "Colours: light"],
  dark: ["Theme: dark", "Colours: dark"],
};
const GOLDEN_ANGLE = 137.508; // degrees: neighbours in number are far apart in hue

const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];
let resolved = new Map();

const chosen = () => document.documentElement.dataset.theme ?? "auto";
const dark = () => (chosen() === "auto" ? system.matches : chosen() === "dark");

/** What a custom property of the style sheet comes to, such as --ink. */
export function colour(name) {
  if (!resolved.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}

/** The colour of a request, by the engine's number for it. */
export function ownerColour(id) {
  const lightness = (dark() ? 0.7 : 0.6) + 0.06 * ((id % 3) - 1);
  return `oklch(${lightness} 0.115 ${(id * GOLDEN_ANGLE + 20) % 360})`;
}

/** Call back whenever colours have changed. */
export const onColours = (listener) => listeners.push(listener);

function changed() {
  resolved = new Map();
  for (const listener of listeners) listener();
}

function label() {
  const [word, title] = WORDS[chosen()];
  say(byId("theme"), word);
  byId("theme").setAttribute("aria-label", title);
}

function choose(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("octavo-theme", theme);
  } catch {
    // No storage in here: until the page is left, then.
  }
  label();
  changed();
}

/** Make the switch in the masthead work. */
export function openTheme() {
  label();
  system.addEventListener("change", changed);
  byId("theme").addEventListener("click", () => {
    choose(THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]);
  });
}
