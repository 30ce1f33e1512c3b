"""Whether two models speak of the same tokens."""

from __future__ import annotations

from app.text.tokenizer import Tokenizer


def difference(served: Tokenizer, other: Tokenizer) -> str | None:
    """In what the vocabulary of another model differs from that of the served one; None if they
    are the same, token by token."""
    if served.vocab_size != other.vocab_size:
        return f"it has {other.vocab_size} tokens, the served model has {served.vocab_size}"
    for token in range(served.vocab_size):
        ours, theirs = served.token_bytes(token), other.token_bytes(token)
        if ours != theirs:
            return f"its token {token} is {theirs!r}, the served model's {ours!r}"
        if served.is_control(token) != other.is_control(token):
            return (
                f"its token {token}, {theirs!r}, is a control token in one of the two models only"
            )
    return None
