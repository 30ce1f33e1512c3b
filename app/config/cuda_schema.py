"""What can be configured of the CUDA backend."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from app.config.section import Section

MOST_BUCKET: Final = 1024
"""Rows of the largest graph that can be asked for."""


def parse_graphs(value: object) -> object:
    """Accept true, false, or numbers of rows in ascending order; raises ValueError otherwise."""
    if type(value) is bool or (isinstance(value, list) and value and _ascends(value)):
        return value
    raise ValueError(
        f"expected true, false, or ascending numbers of rows from 1 to {MOST_BUCKET}"
        " such as [1, 2, 4, 8]"
    )


def _ascends(values: list[object]) -> bool:
    """Whether these are numbers of rows, each more than the one before."""
    rows = [each for each in values if type(each) is int and 1 <= each <= MOST_BUCKET]
    return values == sorted(set(rows))


Graphs: TypeAlias = Annotated[bool | list[int], BeforeValidator(parse_graphs)]
AttentionName: TypeAlias = Literal["auto", "flashinfer", "triton"]


class CudaConfig(Section):
    """The CUDA backend."""

    memory_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9,
        description="share of the memory that weights and the largest step leave, for the KV cache",
    )
    graphs: Graphs = Field(
        default=True,
        description="whether steps of decodes are CUDA graphs; or for how many rows each",
    )
    attention: AttentionName = Field(
        default="auto", description="flashinfer or triton; auto: triton where FlashInfer is not"
    )
