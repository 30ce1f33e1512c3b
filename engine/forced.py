"""Tokens that a grammar leaves no choice about: they are known without a model step.

    sampled     {"          the grammar wants the name of a member
    forced        first Name          appended with it, and said in the same output
    next row    {" first Name         all of them are computed, and one token is sampled behind them

A mask would have allowed nothing else at these places, so the tokens of a request are the same as
if they came one by one. It takes fewer steps.
"""

from __future__ import annotations

from engine.request import Sequence


def follow(sequence: Sequence, token: int) -> tuple[int, ...]:
    """Tell the grammar of a sequence its last token, and append those which that forces.

    Returns the token and what follows it, up to one that ends the sequence. Who wants to know how
    likely each token is gets none that the model was not asked about.
    """
    matcher = sequence.matcher
    assert matcher is not None, "only who has a grammar follows it"
    matcher.accept(token)
    if sequence.request.controls.logprobs is not None or _ends(sequence, token):
        return (token,)
    landed = [token]
    for forced in matcher.forced():
        sequence.tokens.append(forced)
        matcher.accept(forced)
        landed.append(forced)
        if _ends(sequence, forced):
            break
    return tuple(landed)


def _ends(sequence: Sequence, token: int) -> bool:
    """Whether nothing comes behind a token, the last of a sequence that its grammar knows."""
    request, matcher = sequence.request, sequence.matcher
    assert matcher is not None
    return (
        token in request.ending_ids
        or len(sequence.tokens) >= request.most_tokens
        or matcher.over
        or bool(matcher.fault)
    )
