// A chat completion as it streams in.
import { bearer, complaint } from "./format.js";

/** The data of each event of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield part.slice(6);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/**
 * Ask for an answer; yields {text, tokens, prompt, cached, finish} for each chunk.
 *
 * name: what the request is called in the engine's tables and in logs.
 * Throws an Error whose message is for people, or an AbortError if `signal` says so.
 */
export async function* complete(body, name, key, signal) {
  const reply = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", "x-request-id": name, ...bearer(key) },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  if (!reply.ok) {
    const why = await complaint(reply);
    throw new Error(reply.status === 401 ? `${why} It goes under “Sampling and key”.` : why);
  }
  for await (const data of events(reply.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const [choice] = chunk.choices;
    yield {
      text: choice?.delta?.content ?? "",
      finish: choice?.finish_reason ?? null,
      tokens: chunk.usage?.completion_tokens,
      prompt: chunk.usage?.prompt_tokens,
      cached: chunk.usage?.prompt_tokens_details?.cached_tokens,
    };
  }
}
