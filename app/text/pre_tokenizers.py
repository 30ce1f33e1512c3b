"""How text is cut into words before the merges of BPE, by the name that a GGUF file gives it.

The names, and which take what, are those of llama.cpp (src/llama-vocab.cpp). The patterns are the
ones that the models were trained with, which llama.cpp quotes there as "original regex from
tokenizer.json"; where its own engine cannot run one it has an approximation, which cuts some words
with non-ASCII letters (tekken) or U+017F (llama-bpe, qwen2) elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class Pre:
    """What a name stands for.

    patterns: applied in turn, each cutting the pieces of the one before into matches and what lies
    between them. whole_words: a word that is a token is taken without asking the merges.
    adds_bos: prompts start with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """Cuts text into words, spelled in the byte-level alphabet."""
        cuts = [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA_BPE = Pre((_LLAMA3,), whole_words=True, adds_bos=True)

PRE_TOKENIZERS: Mapping[str, Pre] = MappingProxyType(
    {
        "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "gpt-2": Pre((_GPT2,)),
        "llama-bpe": _LLAMA_BPE,
        "llama-v3": _LLAMA_BPE,
        "llama3": _LLAMA_BPE,
        "qwen2": Pre((_QWEN2,)),
        "smollm": Pre((r"\p{N}", _GPT2)),
        "tekken": Pre((_TEKKEN,), whole_words=True, adds_bos=True),
    }
)
"""`tokenizer.ggml.pre` → how text is cut."""
