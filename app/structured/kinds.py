"""What a grammar may be written in, and how JSON is spaced; nothing that takes long to import."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["json", "regex", "choice", "grammar", "tools"]

WHITESPACE: Final = r" |\n {0,20}"
"""What may stand between two tokens of JSON: a space, or a line break and an indent. No more, or a
weak model writes blanks until its answer is cut."""
