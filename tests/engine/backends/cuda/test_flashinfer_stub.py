"""FlashInfer's stand-in computes the reference, and refuses what FlashInfer gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice, Indiscipline
from support.flashinfer_stub import Refused, attend, flashinfer_stub
from torch import Tensor

from engine.backends import reference
from engine.batch import BLOCK
from tests.engine.backends.batches import Work, make_batch

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


class Desk:
    """A wrapper for prefills, two rows that it is planned for, and pools."""

    def __init__(self, **changes: Any) -> None:
        self.device = CPUDevice()
        self.flashinfer = flashinfer_stub(self.device)
        self.event = self.device.event()
        self.wrapper = self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8), backend="fa2"
        )
        rng = np.random.default_rng(0)
        shape = 2, 8, BLOCK, KV_HEADS, HEAD_DIM
        drawn = rng.standard_normal(shape, dtype=np.float32)
        self.pools: Any = tuple(torch.from_numpy(drawn))
        self.queries = torch.from_numpy(rng.standard_normal((4, HEADS, HEAD_DIM), dtype=np.float32))
        self.batch = make_batch([Work([3, 1], 19, [0]), Work([6], 5, [0] * 3)])
        self.expected = reference.paged_attention(
            self.batch, self.queries.numpy(), *(pool.numpy() for pool in self.pools)
        )
        batch = self.batch
        self.arguments = {
            "qo_indptr": self.device.pinned(batch.qo_indptr),
            "paged_kv_indptr": self.device.pinned(batch.kv_indptr),
            "paged_kv_indices": self.device.upload(batch.kv_indices),
            "paged_kv_last_page_len": self.device.pinned(batch.last_page_len),
            "num_qo_heads": HEADS,
            "num_kv_heads": KV_HEADS,
            "head_dim_qk": HEAD_DIM,
            "page_size": BLOCK,
            "causal": True,
            "q_data_type": torch.float32,
            "kv_data_type": torch.float32,
            **changes,
        }

    def plan(self, **changes: Any) -> None:
        self.event.synchronize()
        self.wrapper.plan(**self.arguments | changes)
        self.event.record()

    def run(self) -> np.ndarray:
        return self.wrapper.run(q=self.queries, paged_kv_cache=self.pools).numpy()

    def pinned(self, *values: int) -> Tensor:
        return self.device.pinned(np.array(values, np.int32))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_computes_the_reference(desk):
    desk.plan()
    np.testing.assert_allclose(desk.run(), desk.expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize(("kv_len", "count"), [(1, 1), (9, 1), (9, 4), (9, 9)])
def test_attend_is_the_reference_for_one_row(kv_len: int, count: int, window: int | None):
    rng = np.random.default_rng(kv_len)
    queries = rng.standard_normal((count, HEADS, HEAD_DIM))
    keys, values = rng.standard_normal((2, 1, BLOCK, KV_HEADS, HEAD_DIM))
    batch = make_batch([Work([0], kv_len - count, [0] * count)])
    expected = reference.paged_attention(batch, queries, keys, values, window)
    left = -1 if window is None else window - 1
    found = attend(queries, keys[0, :kv_len], values[0, :kv_len], kv_len, left)
    np.testing.assert_allclose(found, expected)


def test_blocks_that_change_before_the_run_are_read_as_they_are_then(desk):
    desk.plan()
    desk.arguments["paged_kv_indices"].fill_(0)
    assert not np.allclose(desk.run(), desk.expected)


def test_offsets_that_change_before_the_run_are_noticed(desk):
    desk.plan()
    desk.arguments["paged_kv_last_page_len"].fill_(1)
    assert not np.allclose(desk.run(), desk.expected)
    with pytest.raises(Indiscipline, match="written to"):
        desk.event.synchronize()


def test_a_plan_while_the_plan_before_is_copied_is_refused(desk):
    desk.plan()
    with pytest.raises(Refused, match="is being copied"):
        desk.wrapper.plan(**desk.arguments)


def test_an_event_from_before_the_plan_does_not_say_that_it_was_copied(desk):
    desk.event.record()
    desk.wrapper.plan(**desk.arguments)
    desk.event.synchronize()
    with pytest.raises(Refused, match="is being copied"):
        desk.wrapper.plan(**desk.arguments)


def test_a_plan_while_a_graph_is_captured_is_refused(desk):
    with pytest.raises(Indiscipline):
        desk.device.capture(lambda: desk.wrapper.plan(**desk.arguments))


def test_a_run_without_a_plan_is_refused(desk):
    with pytest.raises(Refused, match="run before plan"):
        desk.run()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"causal": False}, "without `causal`"),
        ({"q_data_type": "float16"}, "left to chance"),
        ({"kv_data_type": None}, "left to chance"),
        ({"num_qo_heads": 6}, None),
    ],
)
def test_arguments_that_mean_something_else_are_refused(
    desk: Desk, changes: dict[str, Any], why: str | None
):
    if why is None:  # found by the run
        desk.plan(**changes)
        with pytest.raises(Refused, match="queries are"):
            desk.run()
    else:
        with pytest.raises(Refused, match=why):
            desk.plan(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (lambda desk: {"paged_kv_indptr": desk.pinned(1, 2, 3)}, "begins at 0"),
        (lambda desk: {"paged_kv_indptr": desk.pinned(0, 2)}, "an entry a row"),
        (lambda desk: {"paged_kv_indptr": desk.pinned(0, 2, 2)}, "each row has pages"),
        (lambda desk: {"paged_kv_indptr": desk.pinned(0, 2, 4)}, "end where indptr does"),
        (lambda desk: {"paged_kv_last_page_len": desk.pinned(0, 8)}, "1 to 16 tokens"),
        (lambda desk: {"paged_kv_last_page_len": desk.pinned(17, 8)}, "1 to 16 tokens"),
        (lambda desk: {"qo_indptr": desk.pinned(0, 1, 10)}, "more queries than KV"),
        (lambda desk: {"qo_indptr": desk.pinned(0, 4)}, "an entry a row"),
        (lambda desk: {"qo_indptr": torch.tensor([0, 1, 4])}, "not int32"),
        (lambda desk: {"qo_indptr": _spread(0, 1, 4)}, "not contiguous"),
        (lambda desk: {"qo_indptr": torch.tensor([0, 1, 4]).int()}, "on the device"),
        (lambda desk: {"paged_kv_indptr": torch.tensor([0, 2, 3]).int()}, "on the device"),
        (lambda desk: {"paged_kv_indices": desk.pinned(3, 1, 6)}, "on the host"),
        (
            lambda desk: {
                "qo_indptr": desk.pinned(0),
                "paged_kv_indptr": desk.pinned(0),
                "paged_kv_indices": torch.zeros(0, dtype=torch.int32),
                "paged_kv_last_page_len": desk.pinned(),
            },
            "without rows",
        ),
    ],
)
def test_arrays_that_flashinfer_would_misread_are_refused(
    desk: Desk, changes: Callable[[Desk], dict[str, Tensor]], why: str
):
    with pytest.raises(Refused, match=why):
        desk.plan(**changes(desk))


def test_tensors_that_are_not_what_was_planned_are_refused(desk):
    desk.plan()
    whole = desk.queries
    for queries, why in (
        (whole[:3], "queries are"),
        (whole.half(), "planned as"),
        (whole.transpose(0, 1).contiguous().transpose(0, 1), "not contiguous"),
    ):
        desk.queries = queries
        with pytest.raises(Refused, match=why):
            desk.run()
    desk.queries, (keys, values) = whole, desk.pools
    for pools, why in (
        ((keys.half(), values.half()), "KV is"),
        ((keys[:, :8], values[:, :8]), "pages are"),
        ((keys, torch.stack([values, values], 1)[:, 0]), "other strides"),
    ):
        desk.pools = pools
        with pytest.raises(Refused, match=why):
            desk.run()


def test_a_workspace_that_is_too_small_is_refused(desk):
    decodes = desk.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        float_workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8),
        use_tensor_cores=True,
        backend="fa2",
    )
    batch = make_batch([Work(list(range(500)), 7999, [0])])
    with pytest.raises(Refused, match="Failed to allocate"):
        decodes.plan(
            indptr=desk.device.pinned(batch.kv_indptr),
            indices=desk.device.upload(batch.kv_indices),
            last_page_len=desk.device.pinned(batch.last_page_len),
            num_qo_heads=32,
            num_kv_heads=8,
            head_dim=128,
            page_size=BLOCK,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )


@pytest.mark.parametrize(
    "changes", [{"backend": "auto"}, {"kv_layout": "HND"}, {"use_tensor_cores": False}]
)
def test_wrappers_of_other_modules_are_refused(desk: Desk, changes: dict[str, Any]):
    workspace = torch.zeros(1 << 20, dtype=torch.uint8)
    arguments = {"use_tensor_cores": True, "backend": "fa2", **changes}
    with pytest.raises(Refused):
        desk.flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, **arguments)


def test_calls_are_recorded_as_they_were_made(desk):
    desk.plan()
    desk.run()
    made = [(call.method, call.args, sorted(call.kwargs)) for call in desk.flashinfer.calls]
    assert made == [
        ("__init__", (), ["backend", "float_workspace_buffer"]),
        ("plan", (), sorted(desk.arguments)),
        ("run", (), ["paged_kv_cache", "q"]),
    ]


def _spread(*values: int) -> Tensor:
    """The values in every other place of memory."""
    return torch.tensor([values, values]).int().T.contiguous()[:, 0]
