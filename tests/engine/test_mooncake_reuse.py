"""Replayed in the block layer, a published trace is reused as far as an LRU of that size allows.

The trace is Mooncake's conversation trace (Apache-2.0, github.com/kvcache-ai/Mooncake), which is
too large to be copied here.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from loadtest import cache_bench
from loadtest.cache_bench import Prompt, conversations, measure_block_layer, read_trace, replay

TRACE = (
    Path(__file__).parents[3] / "shared/traces/arrivals/mooncake_conversation_first40min.jsonl.gz"
)


def lru_reuse(prompts: list[Prompt], size: int) -> int:
    """Leading blocks found if prompts are remembered in a plain list of keys, the last block of a
    prompt used before its first. A prompt makes room for itself block by block."""
    cache: OrderedDict[bytes, None] = OrderedDict()
    found = 0
    for keys in prompts:
        known = next((n for n, key in enumerate(keys) if key not in cache), len(keys))
        found += known
        for key in keys[:known]:
            cache.move_to_end(key)
        for key in keys[known:]:
            if len(cache) == size:
                cache.popitem(last=False)
            cache[key] = None
        for key in reversed(keys):
            cache.move_to_end(key)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "percent"), [(1_000, 4.0), (5_000, 11.4), (20_000, 27.0)])
def test_reuse_of_mooncake_conversations(blocks: int, percent: float) -> None:
    if not TRACE.exists():
        pytest.skip("the trace is not beside the checkout, under ../shared")
    reuse = replay(read_trace(TRACE, rows=2_000), blocks)
    assert reuse.asked == 54_559
    assert 100 * reuse.fraction == pytest.approx(percent, abs=0.4)


@pytest.mark.parametrize("blocks", [250, 1_000, 5_000])
def test_the_pool_finds_what_a_plain_lru_finds(blocks: int) -> None:
    prompts = conversations(500, seed=7)
    assert replay(prompts, blocks).found == lru_reuse(prompts, blocks)


def test_made_up_conversations_resemble_the_trace() -> None:
    prompts = conversations(2_000)
    assert prompts == conversations(2_000)
    assert 25 < sum(map(len, prompts)) / len(prompts) < 30
    assert max(map(len, prompts)) <= cache_bench.BLOCKS
    assert 0.2 < replay(prompts, 20_000).fraction < 0.4


def test_a_rate_counts_requests_and_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says half a second passed, the figures are twice the numbers."""
    now = iter([1.0, 1.5])
    monkeypatch.setattr(cache_bench.time, "thread_time", lambda: next(now))
    prompts = conversations(10)
    figures = measure_block_layer(prompts, rounds=1)
    assert figures == {"requests_per_s": 20, "blocks_per_s": 2 * sum(map(len, prompts))}


def test_a_trace_is_read_plain_and_gzipped(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"hash_ids": ids}) + "\n" for ids in ([0, 1], [0, 2, 3], [4]))
    plain, zipped = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    plain.write_text(lines)
    zipped.write_bytes(gzip.compress(lines.encode()))
    prompts = read_trace(plain, rows=2)
    assert [len(keys) for keys in prompts] == [2, 3]
    assert prompts[0][0] == prompts[1][0] != prompts[0][1]
    assert read_trace(zipped, rows=2) == prompts


@pytest.mark.parametrize(
    "line", ["no json", "[]", '{"hash_ids": 3}', '{"hash_ids": ["a"]}', '{"hash_ids": [-1]}', "{}"]
)
def test_a_line_without_hash_ids_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_trace(path, rows=10)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="no hash_ids"):
        read_trace(path, rows=10)


def bench(trace: Path) -> Result:
    quick = ["--only", "host", "--rounds", "1", "--steps", "1", "--waiting", "1", "--json"]
    return CliRunner().invoke(main, ["bench", *quick, "--trace", str(trace)])


def test_bench_reports_the_block_layer(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"hash_ids": [1, 2]}\n' * 4)
    layer = json.loads(bench(path).stdout)["block_layer"]
    assert set(layer) == {"requests_per_s", "blocks_per_s"}
    assert layer["blocks_per_s"] == pytest.approx(2 * layer["requests_per_s"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "line 1"),
        (json.dumps({"hash_ids": list(range(cache_bench.BLOCKS + 1))}), "more than 5,000 blocks"),
    ],
)
def test_bench_refuses_a_trace_that_it_cannot_replay(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    result = bench(path)
    assert result.exit_code == 2
    assert says in result.stderr
