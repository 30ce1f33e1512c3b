"""Stop strings are found exactly, wherever the text is cut."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.text.stops import StopMatcher

SHORT = st.text(alphabet="ab", max_size=12)


def run(pieces, stops, include=False):
    """What was emitted, piece by piece, and the stop that was found."""
    matcher = StopMatcher(stops, include)
    emitted = []
    for piece in pieces:
        text, stop = matcher.feed(piece)
        emitted.append(text)
        if stop is not None:
            return emitted, stop
    return [*emitted, matcher.flush()], None


def expected(text, stops):
    """By definition: the first end of a stop decides, then the longest. (start, stop) or None."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return end - len(stop), stop
    return None


def cut(text, points):
    bounds = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@given(
    text=st.text(alphabet="ab", max_size=60),
    points=st.lists(st.integers(0, 60), max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=8), max_size=4),
    include=st.booleans(),
)
@example(text="abcd", points=[2], stops=["abcd", "bc"], include=False)
@example(text="aabaab aabaac", points=range(13), stops=["aabaac"], include=True)
def test_output_is_the_text_before_the_first_stop(text, points, stops, include):
    emitted, stop = run(cut(text, points), stops, include)
    match = expected(text, stops)
    if match is None:
        assert ("".join(emitted), stop) == (text, None)
    else:
        start, first = match
        assert ("".join(emitted), stop) == (text[:start] + (first if include else ""), first)


@given(text=st.text(alphabet="ab", max_size=40), stop=st.text(alphabet="ab", min_size=1))
def test_exactly_the_end_that_may_become_a_stop_is_held_back(text, stop):
    matcher = StopMatcher([stop])
    emitted = ""
    for end, char in enumerate(text, 1):
        piece, found = matcher.feed(char)
        emitted += piece
        if found:
            break
        held = max(n for n in range(len(stop)) if text[:end].endswith(stop[:n]))
        assert emitted == text[: end - held]


@pytest.mark.parametrize(("stop", "text"), [("FD", "DE"), ("EF", "D"), ("D", ""), ("FDEFD", "DE")])
def test_stops_over_and_inside_pieces(stop, text):
    emitted, found = run(["DEF"] * 6, [stop])
    assert ("".join(emitted), found) == (text, stop)
    assert all(piece in text for piece in emitted)


def test_no_stops_pass_everything_at_once():
    assert run(["a", "bc"], []) == (["a", "bc", ""], None)


def test_special_characters_mean_themselves():
    assert run(["a.b", "[c]^-x"], ["]^-"]) == (["a.b", "[c"], "]^-")
    assert run(["end"], ["\\", "|", "."]) == (["end", ""], None)


def test_nothing_passes_after_the_stop():
    matcher = StopMatcher(["b"])
    assert matcher.feed("abc") == ("a", "b")
    assert matcher.feed("more") == ("", "b")
    assert matcher.flush() == ""


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(["a", ""])


class CountingStr(str):
    """A stop string that counts how many of its characters are looked at."""

    reads = 0

    def __getitem__(self, index):
        CountingStr.reads += 1
        return super().__getitem__(index)


def test_the_work_is_linear_however_long_the_stops():
    """Text that matches a long stop again and again, and always fails late."""
    stop = CountingStr("a" * 20_000 + "b")
    text = ("a" * 19_999 + "c") * 5
    CountingStr.reads = 0
    matcher = StopMatcher([stop])
    emitted = "".join(matcher.feed(text[i : i + 4])[0] for i in range(0, len(text), 4))
    assert emitted + matcher.flush() == text
    assert CountingStr.reads < 8 * len(text)
