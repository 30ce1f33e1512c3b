"""The decision log: everything that was decided, and the same bytes for the same run."""

import json

from support.engines import Harness


def test_the_log_tells_the_story_of_a_run() -> None:
    harness = Harness(budget=16, rows=2)
    harness.submit(20, max_tokens=2)
    harness.run()
    assert harness.log.entries == [
        ("arrive", 1, 0),
        ("step", 0, 0.0),
        ("admit", 1, False, 0),
        ("chunk", 1, 0, 16),
        ("step", 1, 0.001),
        ("chunk", 1, 0, 4),
        ("step", 2, 0.002),
        ("decode", [1, 0]),
        ("finish", 1, 0, "length"),
    ]


def test_the_log_is_json_lines_and_holds_no_token() -> None:
    harness = Harness()
    harness.submit([987_654_321], max_tokens=3)
    harness.run()
    encoded = harness.log.encode()
    assert [json.loads(line)[0] for line in encoded.splitlines()] == [
        entry[0] for entry in harness.log.entries
    ]
    assert b"987654321" not in encoded


def test_refusals_preemptions_and_aborts_are_in_it() -> None:
    harness = Harness(blocks=6)
    for _ in range(3):
        harness.submit(20, max_tokens=40)
    left = harness.submit(20, max_tokens=40)
    never = harness.submit(200, max_tokens=1)
    harness.step()
    harness.abort(left)
    harness.run()
    kinds = {entry[0] for entry in harness.log.entries}
    assert {"reject", "cancel", "preempt"} <= kinds
    assert ("reject", never, "never_fits") in harness.log.entries
