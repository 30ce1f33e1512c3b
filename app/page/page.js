// Puts the page together.
import { openChat } from "./chat.js";
import { openTheme } from "./colours.js";
import { bearer, byId, keys, say } from "./format.js";
import { openLive } from "./live.js";

/** The name of the served model; whoever needs a key for that sees a dash until there is one. */
async function nameModel() {
  const reply = await fetch("v1/models", { headers: bearer(keys.get("api-key")) });
  say(byId("model"), reply.ok ? (await reply.json()).data[0].id : "–");
}

openTheme();
const chat = openChat();
openLive(chat.names);
nameModel().catch(() => say(byId("model"), "–"));
byId("api-key").addEventListener("change", () => nameModel().catch(() => {}));
