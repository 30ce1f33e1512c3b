"""Building the native library never fails set-up, and says what its absence costs."""

from pathlib import Path

import pytest

from engine.native import build


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    return tmp_path


def test_without_a_compiler_set_up_goes_on_with_one_message(elsewhere, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    monkeypatch.delenv("CXX", raising=False)
    assert build.main() == 0
    said = capsys.readouterr().err
    assert "no C++ compiler was found" in said
    assert "slower" in said


def test_a_compiler_that_fails_is_quoted(elsewhere, monkeypatch, capsys) -> None:
    compiler = elsewhere / "broken"
    compiler.write_text("#!/bin/sh\necho 'error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build.main() == 0
    assert "error: no such header" in capsys.readouterr().err
    assert not list((elsewhere / "built").glob("*.so"))


def test_the_name_changes_with_the_sources(elsewhere, monkeypatch) -> None:
    before = build.library_path()
    sources = elsewhere / "src"
    sources.mkdir()
    for source in build.SOURCES.iterdir():
        (sources / source.name).write_bytes(source.read_bytes() + b"\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.library_path() != before


def test_an_instruction_set_that_the_compiler_does_not_know_is_left_out(
    elsewhere, monkeypatch
) -> None:
    compiler, log = elsewhere / "old", elsewhere / "log"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-mamx*) echo "unrecognized option" >&2; exit 1;; esac\n'
        f'echo "$*" >> {log}\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "instruction_sets", lambda: build.X86_SETS)
    assert build.build().exists()
    assert "OCTAVO_WITH_AVX512" in log.read_text()
    assert "OCTAVO_ISA=avx512" in log.read_text()
    assert "AMX" not in log.read_text()
