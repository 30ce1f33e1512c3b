"""On the native path a request is answered the same to the last bit however it is served: tokens
and log-probabilities, greedy and drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from support.bit_parity import WAYS, Restaurant, random_asks
from support.float_parity import MODEL, asks

from engine.backends.quantised_files import Calibration, quantised_weights
from engine.models.files import read_config
from engine.models.rope import rope_table
from engine.native.model import NativeModel
from tests.engine.models.tiny_llama import CONFIG
from tests.engine.native.tiny import ISAS, library, native_model

TINY = dataclasses.replace(CONFIG, context_length=512)


@pytest.fixture(scope="module", params=ISAS)
def few(request) -> Iterator[Restaurant]:
    model = native_model(TINY, request.param)
    yield Restaurant(model, TINY, random_asks(12, TINY), tight=21, kv_dtype="int8")
    model.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_dozen_requests_to_a_tiny_model(few, way) -> None:
    for found in few.serve(way):
        assert found == few.alone


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def many(request) -> Iterator[Restaurant]:
    model = native_model(TINY)
    yield Restaurant(model, TINY, random_asks(40, TINY), tight=21, kv_dtype=request.param)
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_40_requests_to_a_tiny_model(many, way) -> None:
    for found in many.serve(way):
        assert found == many.alone


@pytest.fixture(scope="module", params=["best", "second best"])
def real(request) -> Iterator[Restaurant]:
    """The default model, in the two best instruction sets of this processor."""
    if not MODEL.exists():
        pytest.skip(f"{MODEL.name} is not in models/")
    usable = [isa for isa in reversed(ISAS) if library().octavo_has(isa.encode())]
    if request.param == "second best" and len(usable) < 2:
        pytest.skip("this processor has one instruction set only")
    config = read_config(MODEL)
    weights = quantised_weights(MODEL, config, Calibration(), native=True)
    isa = usable[request.param == "second best"]
    model = NativeModel(library(), weights, config, rope_table(config), isa=isa)
    yield Restaurant(model, config, asks(40, max_tokens=6, longest=120), 10, "int8")
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_40_requests_to_the_real_model(real, way) -> None:
    for found in real.serve(way):
        assert found == real.alone
