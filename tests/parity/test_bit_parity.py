"""On the native path a request is answered the same to the last bit however it is served: tokens
and log-probabilities, greedy and drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from support.bit_parity import WAYS, Restaurant, random_asks, under_grammars
from support.float_parity import MODEL, Said, asks

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


@pytest.fixture(scope="module")
def guided() -> Iterator[tuple[Restaurant, list[Said]]]:
    """Grammars that force tokens, and what each request is answered alone and token by token."""
    model = native_model(TINY)
    slowly, forced = (under_grammars(random_asks(12, TINY), forces=each) for each in (False, True))
    expected = Restaurant(model, TINY, slowly, tight=22, kv_dtype="int8").alone
    yield Restaurant(model, TINY, forced, tight=22, kv_dtype="int8"), expected
    model.close()


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith(("guessed", "drafted"))])
def test_a_dozen_requests_under_grammars(guided, way) -> None:
    restaurant, expected = guided
    assert restaurant.alone == expected
    for found in restaurant.serve(way):
        assert found == expected


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
