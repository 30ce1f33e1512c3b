"""The native library as Python sees it: its structs, its functions, and which processor it suits.

Calls go through ctypes, which releases the GIL for as long as they take. The structs mirror
`src/abi.h`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

LANES = 16
"""Outputs in a panel of weights; tokens in a vector."""

KV_DTYPES = {
    "float32": (torch.float32, 0),
    "bfloat16": (torch.bfloat16, 1),
    "int8": (torch.int8, 2),
}
"""Element type and OctavoKV of the formats that `engine.capacity.KV_DTYPES` names."""


class Matrix(Structure):
    """OctavoMatrix."""

    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int32),
        ("inputs", c_int32),
    )


class Layer(Structure):
    """OctavoLayer."""

    _fields_ = (
        ("attn_norm", c_void_p),
        ("out_smooth", c_void_p),
        ("ffn_norm", c_void_p),
        ("down_smooth", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("window", c_int32),
    )


class Model(Structure):
    """OctavoModel."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("embedding", Matrix),
        ("embedding_unsmooth", c_void_p),
        ("head", Matrix),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("norm_eps", c_float),
        ("layer_count", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("ffn", c_int32),
        ("vocab", c_int32),
    )


class Cache(Structure):
    """OctavoCache."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("blocks", c_int64),
        ("dtype", c_int32),
    )


class Step(Structure):
    """OctavoStep."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("qo_indptr", c_void_p),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("last_page_len", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
        ("greedy", c_void_p),
        ("tokens", c_int32),
        ("rows", c_int32),
        ("logit_count", c_int32),
        ("threads", c_int32),
    )


class Controls(Structure):
    """OctavoControls."""

    _fields_ = (
        ("mask", c_void_p),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("uniform", c_double),
        ("best", c_float),
        ("top_k", c_int32),
        ("mask_words", c_int32),
    )


class Draw(Structure):
    """OctavoDraw. kept: what it points to."""

    kept: object = None

    _fields_ = (
        ("logits", c_void_p),
        ("controls", POINTER(Controls)),
        ("tokens", c_void_p),
        ("rows", c_int32),
        ("vocab", c_int32),
        ("threads", c_int32),
    )


class Times(Structure):
    """OctavoTimes, nanoseconds."""

    _fields_ = (("products", c_int64), ("attention", c_int64), ("glue", c_int64))


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions. Raises OSError if it cannot be loaded."""
    library = ctypes.CDLL(str(path))
    library.octavo_engine_new.restype = c_void_p
    library.octavo_engine_new.argtypes = [c_char_p]
    library.octavo_has.restype = c_int32
    library.octavo_has.argtypes = [c_char_p]
    library.octavo_engine_free.restype = None
    library.octavo_engine_free.argtypes = [c_void_p]
    library.octavo_engine_name.restype = c_char_p
    library.octavo_engine_name.argtypes = [c_void_p]
    library.octavo_step.restype = c_int32
    library.octavo_step.argtypes = [c_void_p, POINTER(Model), POINTER(Cache), POINTER(Step)]
    library.octavo_times.restype = None
    library.octavo_times.argtypes = [c_void_p, POINTER(Times)]
    library.octavo_dots.restype = None
    library.octavo_dots.argtypes = [c_void_p, POINTER(Matrix), c_void_p, c_int32, c_void_p]
    library.octavo_draw.restype = c_int32
    library.octavo_draw.argtypes = [c_void_p, POINTER(Draw)]
    library.octavo_best.restype = None
    library.octavo_best.argtypes = [c_void_p, POINTER(Draw)]
    library.octavo_attention.restype = None
    library.octavo_attention.argtypes = [
        *(c_void_p, POINTER(Model), POINTER(Cache), POINTER(Step)),
        *(c_int32, c_void_p, c_void_p),
    ]
    return library


def pack(weights: Tensor) -> Tensor:
    """int8 [outputs, inputs] as the library reads it: uint8 [outputs / 16, inputs / 4, 16, 4]."""
    outputs, inputs = weights.shape
    padded = torch.zeros(-(-outputs // LANES) * LANES, -(-inputs // 4) * 4, dtype=torch.int8)
    padded[:outputs, :inputs] = weights
    panels = padded.view(-1, LANES, padded.shape[1] // 4, 4).transpose(1, 2).contiguous()
    return panels.view(torch.uint8).bitwise_xor_(128)  # w + 128
