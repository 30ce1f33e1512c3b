"""The engine's living objects: requests and their sequences."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.batch import BLOCK
from engine.beam_search import Beam, BeamSearch, Search
from engine.blocks import blocks_for
from engine.controls import TokenLogprobs
from engine.grammar import Matcher
from engine.inbox import Submission
from engine.prefix import KeyChain
from engine.prompt_lookup import Outlook
from engine.read_only import OnWrite, ReadOnly, unheard
from policies.base import Phase, Service

if TYPE_CHECKING:
    from engine.memory import KVMemory


class Sequence:
    """A list of known tokens, of which the first `computed` have their KV in the cache.

        tokens   p p p p p p p p p g g g ?        prompt, generated, pending
                 |-computed-|
                            |-in flight-|
        |----------------reached----------------|

    name: the request's id and the sequence's index, by which rows and decisions know it.
    reached: tokens whose KV is in the cache, or will be when what is in flight has landed.
    pending: sampled tokens that are not known yet (rows in flight that sample).
    table: the blocks that hold it, in order. prefill_end: tokens known when it was (re)admitted;
    until they are computed its rows are prompt work, afterwards it decodes.
    epoch: grows whenever computed tokens are given up, so that results that come later are told
    apart. sample_row: where the last launched batch samples it. shares_tail: the block that its
    next token goes to may have other owners. chain: keys of its full blocks; `published` of them
    can be found by others. beam: its score, in a beam search. host: while it waits, the host blocks
    that hold its first `stored` tokens. peak: most tokens it had computed when it was preempted.
    matcher: its place in the grammar of the request, if it has one. outlook: what may follow, for
    who guesses.
    """

    __slots__ = (
        "beam",
        "chain",
        "computed",
        "done",
        "epoch",
        "host",
        "index",
        "last_served",
        "matcher",
        "name",
        "outlook",
        "peak",
        "pending",
        "prefill_end",
        "published",
        "reached",
        "request",
        "sample_row",
        "shares_tail",
        "stored",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, index: int) -> None:
        self.request = request
        self.index = index
        self.name = (request.id, index)
        self.tokens = list(request.submission.prompt)
        self.computed = 0
        self.reached = 0
        self.pending = 0
        self.epoch = 0
        self.sample_row = -1
        self.last_served = -1
        self.prefill_end = len(self.tokens)
        self.table = array("i")  # C ints, so that packing a batch is one copy a row
        self.host = array("i")
        self.stored = 0
        self.peak = 0
        self.done = False
        self.shares_tail = False
        self.chain: KeyChain | None = None
        self.published = 0
        self.beam: Beam | None = None
        self.outlook: Outlook | None = None
        grammar = request.controls.grammar
        self.matcher: Matcher | None = None if grammar is None else grammar.matcher()

    @property
    def in_flight(self) -> int:
        """Tokens that a backend computes now."""
        return self.reached - self.computed

    @property
    def remaining(self) -> int:
        """Tokens that the next step could compute; the last one generated needs no KV.

        Under a grammar the token that is being sampled must be known first.
        """
        if self.pending:
            known = len(self.tokens) + self.pending
            if self.matcher is not None or known >= self.request.most_tokens:
                return 0
            return known - self.reached
        return len(self.tokens) - self.reached

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.request.prompt_length

    @property
    def decoding(self) -> bool:
        return self.reached >= self.prefill_end

    def blocks_missing(self, tokens: int) -> int:
        """Blocks to add to the table so that it holds `tokens` tokens."""
        return max(0, blocks_for(tokens) - len(self.table))

    def begin_at(self, tokens: int) -> None:
        """Have the KV of so many tokens, and nothing in flight."""
        self.computed = self.reached = tokens

    def forget(self) -> None:
        """Give up what was computed; the blocks are the caller's business.

        Tokens that are being sampled stay pending: they are right, and come when they come.
        """
        self.begin_at(0)
        self.epoch += 1
        self.published = 0
        self.shares_tail = False
        if self.beam is not None:
            self.beam.forget()


class Request:
    """What clients, queues, tickets and policies know; its sequences hold tokens and blocks.

    resuming: it was admitted again, and no token of it has been computed since.
    queued_at: how many admissions there were when it began to wait, for the first time or again.
    lost: computed tokens that preemption has cost it. passed: how many requests were admitted past
    it because it did not fit (`Policy.backfill`).
    service: the book of its tenant, where its generated tokens are counted.
    most_tokens: of a sequence that ends by length, the prompt included.
    prompt_logprobs: of the prompt's tokens but the first, as far as they have been scored;
    unscored: some still are to be. Then it takes nothing from the prefix cache.
    search: what its beam search has found so far, if it is one. Then `sequences` are the beams that
    run now; until the prompt is computed that is one.
    """

    __slots__ = (
        "admitted_at",
        "cached",
        "controls",
        "ending_ids",
        "id",
        "last_token_at",
        "lost",
        "most_tokens",
        "passed",
        "phase",
        "preemptions",
        "prompt_length",
        "prompt_logprobs",
        "queued_at",
        "resuming",
        "search",
        "sequences",
        "service",
        "slo_class",
        "submission",
        "ticket",
        "unscored",
        "view",
    )

    def __init__(
        self,
        submission: Submission,
        ticket: int,
        memory: KVMemory,
        on_write: OnWrite = unheard,
    ) -> None:
        self.submission = submission
        self.id = submission.id
        self.ticket = ticket
        self.slo_class = submission.slo_class
        self.prompt_length = len(submission.prompt)
        self.most_tokens = self.prompt_length + submission.max_tokens
        self.phase = Phase.WAITING
        self.admitted_at = math.inf
        self.last_token_at = -math.inf
        self.preemptions = 0
        self.passed = 0
        self.queued_at = 0
        self.lost = 0
        self.resuming = False
        self.cached = 0
        self.service = Service()
        self.controls = submission.controls
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.unscored = submission.controls.prompt_logprobs is not None and self.prompt_length > 1
        self.ending_ids = submission.controls.ending_ids
        self.search: Search | None = None
        if submission.beams is None:
            self.sequences = [Sequence(self, index) for index in range(submission.n)]
        else:
            self._start_search(submission.beams)
        self.view = RequestProxy(self, memory, on_write)

    def _start_search(self, settings: BeamSearch) -> None:
        submission = self.submission
        self.search = Search(settings, submission.max_tokens, self.ending_ids)
        self.controls = replace(submission.controls, beams=settings.width)
        self.sequences = [Sequence(self, 0)]
        self.sequences[0].beam = Beam()

    def scored(self, place: int, logprobs: list[TokenLogprobs]) -> None:
        """Take in the log-probabilities of the tokens of the prompt behind the one at `place`.

        Some may be known already: a step that was in flight at a preemption has scored them, and
        the next one computed them again.
        """
        known = self.prompt_logprobs
        assert place <= len(known), "scores of a prompt come in its order"
        known += logprobs[len(known) - place :]
        self.unscored = len(known) < self.prompt_length - 1

    @property
    def open_sequences(self) -> list[Sequence]:
        """Sequences that have not ended."""
        return [sequence for sequence in self.sequences if not sequence.done]

    @property
    def rows(self) -> int:
        """Rows of a step the request may need: its unfinished sequences, or those of all beams."""
        if self.search is not None:
            return self.search.settings.width
        return sum(not sequence.done for sequence in self.sequences)

    @property
    def unanswered(self) -> list[int]:
        """Indices of the sequences that the client still waits for."""
        if self.search is not None:
            return list(range(self.submission.n))
        return [sequence.index for sequence in self.open_sequences]

    @property
    def computed(self) -> int:
        return sum(sequence.computed for sequence in self.sequences)

    @property
    def tokens_at_most(self) -> int:
        """Tokens of a sequence with KV at full length. The last one generated needs none."""
        return self.most_tokens - 1

    @property
    def blocks_at_most(self) -> int:
        """Blocks at full length."""
        return self.submission.sequences * blocks_for(self.tokens_at_most)

    def prompt_source(self) -> Sequence | None:
        """A sequence whose table holds the KV of the whole prompt, for siblings to share."""
        for sequence in self.sequences:
            if sequence.computed >= self.prompt_length and sequence.table:
                return sequence
        return None


class RequestProxy(ReadOnly):
    """The live, read-only view of a request that policies get (`policies.base.RequestView`)."""

    __slots__ = ("_memory", "_request")

    _request: Request
    _memory: KVMemory

    def __init__(self, request: Request, memory: KVMemory, on_write: OnWrite = unheard) -> None:
        object.__setattr__(self, "_on_write", on_write)
        object.__setattr__(self, "_request", request)
        object.__setattr__(self, "_memory", memory)

    def __repr__(self) -> str:
        return f"<request {self.id} ticket {self.ticket} {self.phase.value}>"

    @property
    def id(self) -> int:
        return self._request.id

    @property
    def ticket(self) -> int:
        return self._request.ticket

    @property
    def tenant(self) -> str:
        return self._request.submission.tenant

    @property
    def weight(self) -> float:
        return self._request.submission.weight

    @property
    def slo_class(self) -> str:
        return self._request.slo_class

    @property
    def priority(self) -> int:
        return self._request.submission.priority

    @property
    def arrival(self) -> float:
        return self._request.submission.arrival

    @property
    def ttft_deadline(self) -> float:
        return self._request.submission.ttft_deadline

    @property
    def queue_deadline(self) -> float:
        return self._request.submission.queue_deadline

    @property
    def tpot_target(self) -> float:
        return self._request.submission.tpot_target

    @property
    def phase(self) -> Phase:
        return self._request.phase

    @property
    def prompt(self) -> int:
        return self._request.prompt_length

    @property
    def cached(self) -> int:
        request = self._request
        if request.phase in (Phase.WAITING, Phase.PREEMPTED):
            return len(self._memory.found(request.open_sequences[0])) * BLOCK
        return request.cached

    @property
    def computed(self) -> int:
        return self._request.computed

    @property
    def output(self) -> int:
        return sum(sequence.generated for sequence in self._request.sequences)

    @property
    def max_output(self) -> int:
        return self._request.submission.max_tokens

    @property
    def rows(self) -> int:
        return self._request.rows

    @property
    def blocks(self) -> int:
        return sum(len(sequence.table) for sequence in self._request.sequences)

    @property
    def private_blocks(self) -> int:
        return self._memory.private(self._request)

    @property
    def recompute(self) -> int:
        return self._request.computed

    @property
    def preemptions(self) -> int:
        return self._request.preemptions

    @property
    def last_token_at(self) -> float:
        return self._request.last_token_at
