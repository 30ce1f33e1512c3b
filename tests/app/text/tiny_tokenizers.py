"""Small Hugging Face tokenizers, trained on the spot and saved as the files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "It is what it is, and that is that: the end.",
    "def main():\n    return 42\n",
    "Größe, naïve café, 日本語 and 🦙🧪",
] * 20
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
KINDS = ["byte-level", "metaspace first", "metaspace always", "prepend"]


def train(kind: str) -> Tokenizer:
    """Byte-level like Qwen2's; or like Llama's, with a space before the first word.

    "metaspace first" puts it before a text, "metaspace always" and "prepend" also after every
    added token.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    special = ["<unk>", "<s>", "</s>"]
    options: dict[str, Any] = {"vocab_size": 340, "show_progress": False}
    if kind == "byte-level":
        special.remove("<unk>")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        options["initial_alphabet"] = pre.ByteLevel.alphabet()
    elif kind == "prepend":
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(spaces)
        tokenizer.decoder = _sentence_piece_decoder()
    else:
        scheme = kind.split()[1]
        tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.decoder = _sentence_piece_decoder()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(special_tokens=special, **options))
    if kind != "byte-level":
        tokenizer = _with_byte_tokens(tokenizer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", start)]
    )
    return tokenizer


def _sentence_piece_decoder() -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])


def _with_byte_tokens(tokenizer: Tokenizer) -> Tokenizer:
    document = json.loads(tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    return Tokenizer.from_str(json.dumps(document))


def write_folder(folder: Path, tokenizer: Tokenizer, **changes: Any) -> Path:
    """Save the tokenizer as a model folder has it.

    changes: `config`, `tokenizer_config`, `generation_config` replace keys of these files, None
    takes one out; `document` replaces keys of tokenizer.json.
    """
    eos = tokenizer.token_to_id("<|im_end|>")
    contents: dict[str, dict[str, Any]] = {
        "config": {"vocab_size": tokenizer.get_vocab_size() + 10, "eos_token_id": eos},
        "tokenizer_config": {
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": "</s>",
            "chat_template": TEMPLATE,
        },
        "generation_config": {},
        "tokenizer": json.loads(tokenizer.to_str()) | changes.get("document", {}),
    }
    for name, values in contents.items():
        values |= changes.get(name, {})
        values = {key: value for key, value in values.items() if value is not None}
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
