"""The progress window (E13): what a step owes to those who were served longest ago.

In every window of `window` steps each running decode gets a token, and the unfinished prompts that
run get `window` tokens together, or all they lack. Both are unit jobs with deadlines: a decode
served in step s is due by step s + window, and so is the prompt token after the one granted in s.
At most rows + window jobs are open, and a step does `budget` of them, so with rows + window at most
window · budget all can be done in time; a step owes as many as could not be done later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from policies.base import Share


@dataclass(frozen=True, slots=True)
class Owed:
    """Decodes and prompt tokens that this step must serve, whatever the policy says."""

    decodes: int = 0
    prompt_tokens: int = 0

    def exceeds(self, share: Share) -> bool:
        """Whether it is more than a policy would grant."""
        return self.decodes > share.decode or self.prompt_tokens > share.prompt


NOTHING = Owed()


class ProgressWindow:
    """Keeps the books of one scheduler. Steps are numbered by the caller, without gaps."""

    def __init__(self, window: int, budget: int) -> None:
        self.window = window
        self.budget = budget
        self._prompt_grants: deque[int] = deque(maxlen=window)

    def owed(self, step: int, last_served: Iterable[int], lacking: int) -> Owed:
        """What step `step` owes.

        last_served: for each running decode the step that served it last. lacking: prompt tokens
        that running prompts still need, 0 if there are none.
        """
        window = self.window
        if lacking == 0:
            self.no_prompts()
        elif len(self._prompt_grants) < window:
            # The window of prompts that start to run now starts now.
            missing = window - len(self._prompt_grants)
            self._prompt_grants.extend([step - 1] * missing)
        decodes = [0] * (window + 1)
        for served in last_served:
            decodes[min(window, max(0, served + window - step))] += 1
        prompts = [0] * (window + 1)
        for served in list(self._prompt_grants)[:lacking]:
            prompts[min(window, max(0, served + window - step))] += 1
        return self._must_do_now(decodes, prompts)

    def no_prompts(self) -> None:
        """No prompt runs: the next one starts a window of its own."""
        self._prompt_grants.clear()

    def granted(self, step: int, prompt_tokens: int) -> None:
        """`prompt_tokens` were granted in `step`."""
        self._prompt_grants.extend([step] * min(prompt_tokens, self.window))

    def _must_do_now(self, decodes: list[int], prompts: list[int]) -> Owed:
        """Split the jobs that cannot wait; index k holds those due within k further steps."""
        due = must = 0
        for slack, (a, b) in enumerate(zip(decodes, prompts, strict=True)):
            due += a + b
            must = max(must, due - slack * self.budget)
        if must <= 0:
            return NOTHING
        must = min(must, self.budget)
        owed_decodes = owed_prompts = 0
        for a, b in zip(decodes, prompts, strict=True):
            take = min(a, must - owed_decodes - owed_prompts)
            owed_decodes += take
            owed_prompts += min(b, must - owed_decodes - owed_prompts)
        return Owed(owed_decodes, owed_prompts)
