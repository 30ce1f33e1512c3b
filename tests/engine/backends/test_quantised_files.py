"""int8 weights are made once, kept, and made again when what was kept is of no use."""

import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.backends import quantised_files
from engine.backends.cpu import create
from engine.backends.quantised_files import Calibration, quantised_weights
from engine.models.files import read_config
from engine.native import available
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

TEXT = tuple(range(3, 100))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, random_tensors())
    return path


def made(model: Path, folder: Path, tokens: tuple[int, ...] = TEXT):
    return quantised_weights(model, read_config(model), Calibration(tokens, folder), native=True)


def test_they_are_made_once_and_kept(model, tmp_path, monkeypatch) -> None:
    first = made(model, tmp_path / "kept")
    monkeypatch.setattr(quantised_files, "load_weights", lambda *_: pytest.fail("made again"))
    again = made(model, tmp_path / "kept")
    assert torch.equal(first.layers[0].down.numbers, again.layers[0].down.numbers)


def test_another_model_or_text_is_kept_under_another_name(model, tmp_path) -> None:
    made(model, tmp_path / "kept")
    made(model, tmp_path / "kept", TEXT[:50])
    write_gguf(model, random_tensors(seed=1))
    made(model, tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_a_damaged_file_is_made_again(model, tmp_path, caplog) -> None:
    made(model, tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        made(model, tmp_path / "kept")
    assert "is damaged" in caplog.text
    assert kept.read_bytes() == whole


def test_without_the_native_library_torch_serves_and_one_warning_says_so(
    model, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(available, "library_path", lambda: tmp_path / "not there.so")
    with caplog.at_level(logging.WARNING):
        backend = create(model, dtype="int8", calibration=Calibration(TEXT), kv_memory_bytes=2**20)
    assert type(backend.runner).__name__ == "TorchRunner"
    warnings = [record.message for record in caplog.records if "native" in record.message]
    assert len(warnings) == 1
    assert "make setup" in warnings[0]
    backend.close()


def test_a_text_is_computed_in_sequences_and_what_is_too_long_is_cut(model, monkeypatch) -> None:
    seen = []

    class Runner:
        def __init__(self, weights, config, blocks) -> None:
            self.blocks = blocks

        def run(self, batch, token_ids) -> None:
            seen.append((batch, token_ids, self.blocks))

    monkeypatch.setattr(quantised_files, "TorchRunner", Runner)
    monkeypatch.setattr(quantised_files, "SEQUENCE", 40)
    monkeypatch.setattr(quantised_files, "CALIBRATION_TOKENS", 90)
    text = tuple(i % CONFIG.vocab for i in range(100))
    quantised_weights(model, read_config(model), Calibration(text), native=True)
    ((batch, token_ids, blocks),) = seen
    assert token_ids.tolist() == list(text[:90])
    assert batch.qo_indptr.tolist() == [0, 40, 80, 90]
    assert batch.kv_indptr.tolist() == [0, 3, 6, 7]
    assert batch.last_page_len.tolist() == [8, 8, 10]
    assert batch.positions.tolist() == [*range(40), *range(40), *range(10)]
    assert batch.slots.tolist() == [*range(40), *range(48, 88), *range(96, 106)]
    assert blocks == 7


def test_the_bits_of_weights_may_be_said_and_are_kept_apart(model, tmp_path) -> None:
    for bits, most in ((8, 127), (7, 63)):
        calibration = Calibration(TEXT, tmp_path / "kept", bits)
        weights = quantised_weights(model, read_config(model), calibration, native=True)
        assert int(weights.layers[0].down.numbers.abs().amax()) == most
    assert len(list((tmp_path / "kept").iterdir())) == 2


CHECK = """
from engine.backends.quantised_files import quantised_weights, torch_is_exact, Calibration
from engine.models.files import read_config
import sys
exact = torch_is_exact()
path = sys.argv[1]
weights = quantised_weights(path, read_config(path), Calibration((3, 4, 5)), native=False)
print(exact, int(weights.layers[0].down.numbers.abs().amax()))
"""


def test_where_torch_saturates_weights_keep_seven_bits(model) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(model)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    exact, most = done.stdout.split()
    if platform.machine() == "x86_64":
        assert exact == "False"
    assert most == ("127" if exact == "True" else "63")
