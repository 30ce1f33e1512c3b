"""Files of a recording: read again however they end, rotated, few, and nobody else's to read."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator

import pytest

from app.recording.files import PATTERN, SUFFIX, RotatedFiles
from loadtest.recordings.files import RecordingError, find_recording, is_recording

HEADER = {"recording": "0123abcd", "format": 1}


@pytest.fixture
def files() -> Iterator[Callable[..., RotatedFiles]]:
    """Makes files of a recording, which are closed in the end."""
    made: list[RotatedFiles] = []

    def make(directory, max_bytes=2**20, keep=9, name="20261130T000000Z-0123abcd") -> RotatedFiles:
        made.append(RotatedFiles(directory, name, HEADER, max_bytes, keep))
        return made[-1]

    yield make
    for each in made:
        each.close()


def line(number: int) -> bytes:
    return (
        json.dumps({"number": number, "noise": hashlib.sha256(b"%d" % number).hexdigest()}).encode()
        + b"\n"
    )


def numbers(directory) -> list[int]:
    return [row["number"] for row in find_recording(directory).rows()]


def test_lines_come_back_in_order_over_several_files(tmp_path, files) -> None:
    made = files(tmp_path, max_bytes=400)
    for number in range(50):
        made.write(line(number))
    made.close()
    assert len(list(tmp_path.glob(PATTERN))) > 3
    assert numbers(tmp_path) == list(range(50))
    assert find_recording(tmp_path).whole
    first = next(iter(sorted(tmp_path.glob(PATTERN))))
    assert gzip.decompress(first.read_bytes()).startswith(b'{"recording"')
    assert first.stat().st_mode & 0o077 == 0


def test_what_was_flushed_can_be_read_before_the_file_is_closed(tmp_path, files) -> None:
    made = files(tmp_path)
    for number in range(3):
        made.write(line(number))
        assert numbers(tmp_path) == list(range(number + 1))


def test_a_file_that_was_cut_anywhere_gives_whole_lines(tmp_path, files) -> None:
    made = files(tmp_path)
    for number in range(8):
        made.write(line(number))
    [path] = tmp_path.glob(PATTERN)
    content = path.read_bytes()
    seen = set()
    for length in range(len(content), 90, -1):
        path.write_bytes(content[:length])
        found = numbers(tmp_path)
        assert found == list(range(len(found)))
        seen.add(len(found))
    assert len(seen) > 5


def test_the_oldest_files_are_deleted_and_the_recording_says_so(tmp_path, files) -> None:
    made = files(tmp_path, max_bytes=200, keep=2)
    for number in range(30):
        made.write(line(number))
    made.close()
    assert len(list(tmp_path.glob(PATTERN))) == 2
    assert not find_recording(tmp_path).whole
    assert numbers(tmp_path)[-1] == 29


def test_a_missing_or_damaged_file_in_between_is_named(tmp_path, files) -> None:
    made = files(tmp_path, max_bytes=200)
    for number in range(20):
        made.write(line(number))
    made.close()
    paths = sorted(tmp_path.glob(PATTERN))
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-20])
    with pytest.raises(RecordingError, match=paths[1].name):
        numbers(tmp_path)
    paths[1].unlink()
    with pytest.raises(RecordingError, match=r"part 1 is missing"):
        numbers(tmp_path)


def test_the_latest_recording_of_a_directory_is_taken_or_that_of_a_file(tmp_path, files) -> None:
    files(tmp_path).write(line(1))
    files(tmp_path, name="20261201T000000Z-ffff0000").write(line(2))
    assert numbers(tmp_path) == [2]
    assert numbers(tmp_path / f"20261130T000000Z-0123abcd-00000{SUFFIX}") == [1]


def test_what_is_no_recording_is_refused(tmp_path) -> None:
    assert not is_recording(tmp_path)
    with pytest.raises(RecordingError, match="there is no recording"):
        find_recording(tmp_path)
    path = tmp_path / f"20261130T000000Z-0123abcd-00000{SUFFIX}"
    path.write_bytes(gzip.compress(b'{"request": 1}\n'))
    with pytest.raises(RecordingError, match="does not begin"):
        find_recording(tmp_path)
    path.write_bytes(gzip.compress(b'{"recording": "x", "format": 99}\n'))
    with pytest.raises(RecordingError, match="format 99"):
        find_recording(tmp_path)
