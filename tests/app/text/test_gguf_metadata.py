"""The cache of GGUF tokenizers: right, and never stale."""

import os
from pathlib import Path

import pytest

import app.text.gguf_metadata as gguf_metadata
from app.text.gguf_metadata import TokenizerMetadata, load_metadata
from engine.errors import ModelError


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really parsed, in order."""
    parsed: list[Path] = []
    read_gguf = gguf_metadata._read_gguf

    def counting(path: Path) -> tuple[TokenizerMetadata, int]:
        parsed.append(path)
        return read_gguf(path)

    monkeypatch.setattr(gguf_metadata, "_read_gguf", counting)
    return parsed


def entry_of(path: Path) -> Path:
    (entry,) = (path.parent / ".cache").iterdir()
    return entry


def test_metadata_holds_what_the_file_says(tiny_gguf):
    metadata = load_metadata(tiny_gguf(eot=1))
    assert (metadata.model, metadata.pre) == ("gpt2", "smollm")
    assert metadata.tokens[1:3] == ["<|im_start|>", "<|im_end|>"]
    assert metadata.eos_ids == [1, 2]
    assert (metadata.eos_id, metadata.bos_id, metadata.add_bos) == (2, 1, False)
    assert metadata.context_length == 512
    assert metadata.chat_template.startswith("{{ bos_token }}")


def test_the_second_load_comes_from_the_cache_and_is_equal(tiny_gguf, reads):
    path = tiny_gguf()
    first = load_metadata(path)
    assert load_metadata(path) == first
    assert reads == [path]


def test_a_changed_file_of_equal_size_and_times_is_read_again(tiny_gguf, reads):
    path = tiny_gguf()
    load_metadata(path)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"<think>", b"<thank>"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert "<thank>" in load_metadata(path).tokens
    assert len(reads) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", bytes.upper])
def test_a_damaged_entry_is_made_anew(tiny_gguf, reads, damage):
    path = tiny_gguf()
    first = load_metadata(path)
    entry = entry_of(path)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert load_metadata(path) == first
    assert len(reads) == 2
    assert entry.read_bytes() == whole


def test_an_unwritable_cache_only_costs_time(tiny_gguf, reads):
    path = tiny_gguf()
    (path.parent / ".cache").write_text("a file where the directory should be")
    assert load_metadata(path) == load_metadata(path)
    assert len(reads) == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no model file .*gone\.gguf"):
        load_metadata(tmp_path / "gone.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model at all" * 10])
def test_a_file_that_is_not_gguf_is_refused(tmp_path, content):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.gguf cannot be read as a GGUF file"):
        load_metadata(path)


def test_a_truncated_file_is_refused(tiny_gguf):
    path = tiny_gguf()
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        load_metadata(path)


def test_a_file_without_a_vocabulary_is_refused(tiny_gguf):
    with pytest.raises(ModelError, match=r"no tokenizer\.ggml\.model"):
        load_metadata(tiny_gguf(model=None))


def test_an_end_token_outside_the_vocabulary_is_refused(tiny_gguf):
    with pytest.raises(ModelError, match="token id 4000 is outside"):
        load_metadata(tiny_gguf(eos=4000))
