"""Images run as nobody in particular, hear signals, tell their health, and carry no secrets."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.deployment import DEPLOY, ROOT
from support.serving import serving

from app.config.load import load_config

HADOLINT = Path(sys.executable).with_name("hadolint")
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile in their order, continued lines joined, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in split]


def final_stage(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    last = max(i for i, (name, _) in enumerate(steps) if name == "FROM")
    return steps[last:]


def last(steps: list[tuple[str, str]], name: str) -> str:
    return [rest for each, rest in steps if each == name][-1]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def steps(request):
    return instructions(request.param.read_text())


def test_there_is_one_for_cpus_and_one_for_cuda():
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.slow
@pytest.mark.skipif(not HADOLINT.exists(), reason="install the extra `deploy`")
@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(file, tmp_path):
    assert hadolint(file) == ""
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(file.read_text().replace("hadolint ignore", "hadolint") + "CMD serve\n")
    assert {"DL3008", "DL3025", "DL4003"} <= set(re.findall(r"DL\d+", hadolint(wrong)))


def hadolint(file: Path) -> str:
    """What it has to say."""
    command = [HADOLINT, "--no-color", file]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_what_builds_does_not_ship(steps):
    froms = [rest for name, rest in steps if name == "FROM"]
    assert len(froms) == 2
    assert froms[0].endswith(" AS build")
    assert "g++" not in " ".join(rest for _, rest in final_stage(steps))


def test_bases_are_pinned(steps):
    arguments = dict(rest.split("=", 1) for name, rest in steps if name == "ARG")
    for name, rest in steps:
        if name == "FROM":
            variable = re.fullmatch(r"\$\{(\w+)\}", rest.split()[0])
            image = arguments[variable[1]] if variable else rest.split()[0]
            assert re.search(r":\d", image), image
    assert not any("latest" in rest for _, rest in steps)


def test_the_user_is_not_root(steps):
    user = last(final_stage(steps), "USER").split(":")[0]
    assert int(user) > 0
    assert f"--uid {user} " in " ".join(rest for _, rest in final_stage(steps))


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
def test_signals_reach_the_server_and_no_shell(steps, name):
    words = json.loads(last(final_stage(steps), name))
    assert all(isinstance(word, str) for word in words)
    assert "sh" not in words


def test_the_command_serves(steps):
    stage = final_stage(steps)
    command = [*json.loads(last(stage, "ENTRYPOINT")), *json.loads(last(stage, "CMD"))]
    assert command == ["tini", "--", "octavo", "serve"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "octavo" in scripts


def test_its_variables_are_settings_that_there_are(steps):
    text = " ".join(rest for name, rest in final_stage(steps) if name == "ENV")
    settings = dict(re.findall(r"(OCTAVO_\w+)=(\S+)", text))
    assert load_config(environ=settings).server.host == "0.0.0.0"
    assert last(final_stage(steps), "EXPOSE") == str(load_config().server.port)


def test_no_secret_is_baked_in(steps):
    for name, rest in steps:
        if name in ("ARG", "ENV"):
            assert not re.search(r"key|token|password|secret", rest, re.IGNORECASE), rest
        assert "http://" not in rest
    copied = [rest for name, rest in final_stage(steps) if name == "COPY"]
    assert copied == ["--from=build /opt/octavo /opt/octavo"]


def test_only_what_is_named_gets_into_the_build():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, "pyproject.toml", "README.md", "LICENSE"}
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == needed


def test_they_install_the_torch_that_make_installs(steps):
    torch = re.search(r"^TORCH \?= (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert sum(f" {torch} " in rest for name, rest in steps if name == "RUN") == 1


def health_command(steps: list[tuple[str, str]]) -> list[str]:
    """What HEALTHCHECK runs, with this Python."""
    python, *arguments = json.loads(last(final_stage(steps), "HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"
    return [sys.executable, *arguments]


async def run_health_check(command: list[str], port: int) -> int:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "OCTAVO_SERVER__PORT": str(port)},
        stderr=subprocess.DEVNULL,
    )
    return await process.wait()


async def test_the_health_check_tells_a_server_that_serves_from_one_that_does_not(steps):
    command = health_command(steps)
    async with serving() as house:
        assert await run_health_check(command, house.port) == 0
    assert await run_health_check(command, house.port) != 0
