"""Log-probabilities in the two shapes of OpenAI's API, and those of a prompt in vLLM's.

The numbers are of the raw logits: the same whatever temperature, bias or truncation is asked for.
Text that a stop string cuts off keeps its entries: there is one for each generated token.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from engine.controls import TokenLogprobs

TokenBytes: TypeAlias = Callable[[int], bytes]
Entry: TypeAlias = tuple[int, TokenLogprobs]
"""A generated token and what is known about its position."""


def token_text(data: bytes) -> str:
    """A token as text; one that is not valid UTF-8 by itself as `bytes:\\xf0\\x9f`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class ChatLogprobs:
    """`choices[].logprobs` of chat: a list of entries with their alternatives, best first."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes

    def render(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {"content": [self._entry(*entry) for entry in entries], "refusal": None}

    def _entry(self, token: int, known: TokenLogprobs) -> dict[str, Any]:
        top = [self._one(other, logprob) for other, logprob in known.top]
        return {**self._one(token, known.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._token_bytes(token)
        return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}


class CompletionLogprobs:
    """`choices[].logprobs` of completions: parallel lists.

    `top_logprobs` holds the best tokens and the chosen one. `text_offset` is where the token's
    text begins, in characters of the choice's whole text; so there is one object a sequence.
    """

    def __init__(self, token_bytes: TokenBytes, shown: TokenBytes | None = None) -> None:
        """shown: the bytes of a token that are in the text; all of them unless told otherwise."""
        self._token_bytes = token_bytes
        self._shown = shown or token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._before: dict[str, list[Any]] = {}

    def begin_with(
        self, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs], text: str
    ) -> None:
        """The choice repeats its prompt, which is `text`; its first token is foretold by nothing.

        Some tokenizers put a space before a text, which is in the token and not in the text.
        """
        self._before = self._lists([(prompt[0], None), *zip(prompt[1:], logprobs, strict=True)])
        surplus = self._offset - len(text)
        offsets = [max(0, offset - surplus) for offset in self._before["text_offset"]]
        self._before["text_offset"] = offsets
        self._decoder.reset()
        self._offset = len(text)

    def render(self, entries: Sequence[Entry]) -> dict[str, Any]:
        lists = self._lists(entries)
        if self._before:
            lists = {name: self._before[name] + values for name, values in lists.items()}
            self._before = {}
        return lists

    def _lists(self, entries: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, list[Any]]:
        return {
            "tokens": [self._text(token) for token, _ in entries],
            "token_logprobs": [known and known.logprob for _, known in entries],
            "top_logprobs": [known and self._top(token, known) for token, known in entries],
            "text_offset": [self._advance(token) for token, _ in entries],
        }

    def _text(self, token: int) -> str:
        return token_text(self._token_bytes(token))

    def _top(self, token: int, known: TokenLogprobs) -> dict[str, float]:
        top = {self._text(other): logprob for other, logprob in known.top}
        top.setdefault(self._text(token), known.logprob)
        return top

    def _advance(self, token: int) -> int:
        start = self._offset
        self._offset += len(self._decoder.decode(self._shown(token)))
        return start


def first_alternatives(known: Sequence[TokenLogprobs], most: int) -> list[TokenLogprobs]:
    """The same with the `most` best alternatives; more may have been asked for elsewhere."""
    return [each if len(each.top) <= most else replace(each, top=each.top[:most]) for each in known]


def prompt_logprobs(
    prompt: Sequence[int], known: Sequence[TokenLogprobs], token_bytes: TokenBytes
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token of a prompt, itself and its alternatives by their
    ids. Nothing foretells the first."""

    def told(token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = token_bytes(token).decode("utf-8", "replace")
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    places: list[dict[str, Any] | None] = [None]
    for token, each in zip(prompt[1:], known, strict=True):
        place = {str(token): told(token, each.logprob, each.rank)}
        for rank, (other, logprob) in enumerate(each.top, 1):
            if other != token:
                place[str(other)] = told(other, logprob, rank)
        places.append(place)
    return places
