"""Calls of tools are read from text, however it is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.calls import CallReader

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": "}\\n</tool_call>", "b": {}}}\n</tool_call>'


def read(pieces):
    """Text, and (name, arguments) of each call."""
    reader = CallReader()
    text, calls = "", []
    for place, piece in enumerate(pieces):
        said = reader.feed(piece, last=place == len(pieces) - 1)
        text += said.text
        for delta in said.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    assert reader.calls == len(calls)
    return text, [tuple(call) for call in calls]


WHOLE = {
    "no call <tool_cal at all": ("no call <tool_cal at all", []),
    f"Well: {ADD}\n{ADD}": (
        "Well: ",
        [("add", '{"a": "}\\n</tool_call>", "b": {}}')] * 2,
    ),
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n': ("", [("f", "{}")]),
    '<tool_call>\n{"name": "f", "arguments": {"a': ("", [("f", '{"a')]),
    '<tool_call>\n{"name": "f", "arguments": {"a": {}}\n': ("", [("f", '{"a": {}}\n')]),
    '<tool_call>\n{"name': ("", []),
    "<tool_call>" + "no call " * 40: ("<tool_call>" + "no call " * 40, []),
}


@pytest.mark.parametrize("text", WHOLE)
def test_a_text_at_once(text):
    assert read([text]) == WHOLE[text]


@pytest.mark.parametrize("text", WHOLE)
@given(cuts=st.lists(st.integers(0, 200)))
def test_cuts_change_nothing(text, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert read(pieces) == WHOLE[text]


def test_text_that_cannot_become_a_tag_is_said_at_once():
    reader = CallReader()
    assert [reader.feed(piece).text for piece in ("a <", "b", " <tool_", "x")] == [
        "a ",
        "<b",
        " ",
        "<tool_x",
    ]
