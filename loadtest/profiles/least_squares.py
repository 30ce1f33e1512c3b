"""Least squares of relative errors with no negative coefficient."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def non_negative(terms: Floats, weights: Floats | None = None) -> Floats:
    """The coefficients >= 0 for which all rows of terms · coefficients are closest to one.

    terms: one observation a row, each divided by what was observed. weights: of the rows' squared
    errors; None weighs all alike. There are few coefficients, so every set of them that may be
    positive is tried.
    """
    rows, columns = terms.shape
    root = np.ones(rows) if weights is None else np.sqrt(weights)
    sides, ones = terms * root[:, None], root
    best, least = np.zeros(columns), np.inf
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            found = np.linalg.lstsq(sides[:, chosen], ones, rcond=None)[0]
            error = float(np.square(sides[:, chosen] @ found - ones).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(columns), error
                best[list(chosen)] = found
    return best
