"""How the next token of a row is chosen: the sampling record that crosses every seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.grammar import Grammar, Mask


@dataclass(frozen=True, slots=True)
class RowControls:
    """Every sampling control of one request. The defaults change nothing.

    temperature: 0 is greedy, whatever else is set.
    top_k: keep the k best logits; 0 keeps all.
    top_p: keep the smallest set of best tokens whose probability reaches p (0 < p <= 1).
    min_p: drop tokens below min_p times the best probability.
    seed: random numbers depend on (seed, sequence index, position) only.
    logit_bias: added to the logits of the named token ids.
    allowed_ids: if set, no other token can be sampled.
    presence_penalty, frequency_penalty: over generated tokens (OpenAI's definition).
    repetition_penalty: over prompt and generated tokens (CTRL, https://arxiv.org/abs/1909.05858).
    min_tokens: generated tokens before which no stop id can be sampled.
    ignore_eos: `eos_ids` do not end the sequence.
    eos_ids: the model's own end-of-sequence ids; stop_ids: what the client added.
    bad_words: token sequences that must not be completed.
    logprobs: None for none, else how many alternatives to report beside the chosen token.
    prompt_logprobs: the same for each token of the prompt but the first.
    beams: for beam search, how many `Candidate`s to report: so many of the best, and so many of the
    best that do not end the sequence; 0 for none.
    grammar: what the generated tokens are held to, if anything. It ends a sequence that is
    complete, EOS or not; it goes with no `beams`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: frozenset[int] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beams: int = 0
    grammar: Grammar | None = None

    @property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return self.stop_ids if self.ignore_eos else self.stop_ids | self.eos_ids


@dataclass(slots=True)
class SampleRow:
    """One row to sample: its controls and what they look back on. Not frozen: see `Output`.

    tokens is the sequence's live list of known tokens (prompt, then generated), not a copy: it is
    valid until the step's result is applied. position is the index the sampled token will have in
    it, and `prompt_length` says where the generated part begins. While the step before is in
    flight the list lacks the token that it samples.
    mask: which tokens the grammar of the request allows here; None allows all.
    """

    controls: RowControls
    index: int
    position: int
    tokens: Sequence[int]
    prompt_length: int
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of a batch, some of whose tokens foretell the next token of a prompt.

    row: its number. first: the first such token, counted from where the row starts; targets: what
    follows it and each token after it. alternatives: how many to report beside each.
    """

    row: int
    first: int
    targets: Sequence[int]
    alternatives: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one sampled position, of the raw logits.

    Raw means before bias, penalties, temperature and truncation, so that the numbers are the same
    whatever the sampling controls. `top` is sorted, best first. `rank` is 1 for the likeliest
    token, and 0 where it was not counted: it is for tokens of prompts.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that a beam may go on with.

    logprob: its raw log-probability. score: the same after bias, penalties and forbidden tokens,
    not normalised again, as in transformers' beam search.
    """

    token: int
    score: float
    logprob: float


@dataclass(slots=True)
class Sampled:
    """What a backend returns for a batch: one entry for each of its `sample_rows`, in order.

    Made in each step, hence not frozen.

    candidates: by place among the sample rows, those of the rows whose controls ask for `beams`,
    best first. Forbidden tokens are never among them.
    prompt_logprobs: for each of the batch's `scored` rows, one for each of its targets.
    """

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    candidates: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    prompt_logprobs: Sequence[Sequence[TokenLogprobs]] = ()
