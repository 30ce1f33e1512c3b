"""Fit `vtc_a10g.json` to the cost profile of the VTC artifact.

    python -m loadtest.profiles.fit_vtc cost_profile.json > loadtest/profiles/vtc_a10g.json

The file (github.com/Ying1123/VTC-artifact, fair_bench/cost_profile.json) holds, for each input and
output length, a batch size, and the seconds of prefill and of decoding over the batch size:

    prefill   one step of batch · input tokens
    decode    `output` steps of `batch` tokens, over a context that grows

Each of the two is an observation. Least squares of relative errors, with no negative coefficient:
there are five, so every set of them that may be positive is tried.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.cost import LinearCost
from engine.simulation.residuals import ALL, Residuals
from loadtest.profiles.document import to_json
from loadtest.profiles.least_squares import non_negative
from loadtest.profiles.profile import Profile

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def fit(measured: dict[str, dict[str, Any]]) -> Profile:
    """The profile that fits what was measured best."""
    terms, seconds = (np.array(side) for side in zip(*_observations(measured), strict=True))
    coefficients = non_negative(terms / seconds[:, None])
    residuals = np.quantile(seconds / (terms @ coefficients) - 1, QUANTILES)
    rounded: list[Any] = [float(f"{each:.4g}") for each in coefficients]
    return Profile(
        name="vtc_a10g",
        about="Llama-2-7B on an A10G, fitted to measurements.",
        cost=LinearCost(*rounded),
        estimate=False,
        source="fair_bench/cost_profile.json of "
        "github.com/Ying1123/VTC-artifact (192c2e2014c6), the artifact of Ying Sheng et al., "
        "Fairness in Serving Large Language Models, OSDI 2024",
        licence="Apache-2.0 (the fitted data); these coefficients and residuals are derived",
        residuals=Residuals({ALL: dict(zip(QUANTILES, residuals.round(3).tolist(), strict=True))}),
        pool_tokens=10_000,  # of the paper's machine
    )


def _observations(measured: dict[str, dict[str, Any]]) -> Iterator[tuple[list[float], float]]:
    """Steps and the tokens of each kind in them, as COEFFICIENTS has them; and the seconds."""
    for given, outputs in measured.items():
        for generated, (batch, prefill_s, decode_s) in outputs.items():
            n, steps = int(given), int(generated)
            context = sum(n + step for step in range(1, steps + 1))
            yield [1, batch * n, 0, batch * n, batch * n * n], batch * prefill_s
            yield [steps, 0, batch * steps, batch * context, 0], batch * decode_s


if __name__ == "__main__":
    print(to_json(fit(json.loads(Path(sys.argv[1]).read_text()))), end="")
