// The Vercel AI SDK against a server: node ai_sdk.mjs URL MODEL; prints what it saw as JSON.
import { APICallError, generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "octavo",
  baseURL: `${url}/v1`,
  apiKey: "none",
  includeUsage: true,
});
const model = provider.chatModel(name);
const messages = [{ role: "user", content: "Hello" }];

const whole = await generateText({ model, messages });

const streamed = streamText({ model, messages });
const deltas = [];
for await (const delta of streamed.textStream) deltas.push(delta);

const cut = await generateText({ model, messages, maxOutputTokens: 2 });
const completion = await generateText({ model: provider.completionModel(name), prompt: "Hello" });

let refused = null;
try {
  await generateText({ model: provider.chatModel("nope"), messages, maxRetries: 0 });
} catch (error) {
  if (!APICallError.isInstance(error)) throw error;
  refused = { status: error.statusCode, message: error.message, retry: error.isRetryable };
}

console.log(
  JSON.stringify({
    whole: { text: whole.text, reason: whole.finishReason, usage: whole.usage },
    streamed: {
      text: deltas.join(""),
      deltas: deltas.length,
      reason: await streamed.finishReason,
      usage: await streamed.usage,
    },
    cut: { text: cut.text, reason: cut.finishReason },
    completion: { text: completion.text },
    refused,
  }),
);
