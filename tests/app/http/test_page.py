"""The page at `/`: static, open to everybody, and closed to scripts that are not its own."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.serving import serving

from app.routes.page import FOLDER, PAGE
from app.tenant_door import OPEN

ROOT = Path(__file__).parents[3]
CONFIG = {"tenants": {"acme": {"keys": ["k1"]}}, "identity": {"require_key": True}}
OURS = [file for file in PAGE if "/vendor/" not in file.path]
HTML = next(file.content.decode() for file in PAGE if file.path == "/")


@pytest.fixture
async def house():
    async with serving(config=CONFIG) as house:
        yield house


def asked_for() -> set[str]:
    """Every path that the page's files name."""
    found = {f"/{path}" for path in re.findall(r'(?:src|href)="([^"#]+)"', HTML)}
    for file in OURS:
        if file.path.endswith(".js"):
            names = re.findall(r'from "\./([^"]+)"', file.content.decode())
            found |= {f"/page/{name}" for name in names}
    return found


async def test_everything_that_it_asks_for_is_there_without_a_key(house) -> None:
    assert asked_for() | {"/"} == {file.path for file in PAGE}
    for file in PAGE:
        reply = await house.client.get(file.path)
        assert (reply.status_code, reply.content) == (200, file.content)
        assert reply.headers["content-type"] == file.media_type
        assert file.path in OPEN


async def test_it_says_what_browsers_may_do_with_it(house) -> None:
    for file in PAGE:
        headers = (await house.client.get(file.path)).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_who_has_it_is_told_so(house) -> None:
    reply = await house.client.get("/")
    tag = reply.headers["etag"]
    assert reply.headers["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await house.client.get("/", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    for unknown in ('"other"', "", "W/"):
        again = await house.client.get("/", headers={"if-none-match": unknown})
        assert again.status_code == 200


async def test_it_is_read_only_and_nothing_else_of_the_folder_is_served(house) -> None:
    head = await house.client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert (await house.client.post("/")).status_code == 405
    for path in ("/page", "/page/", "/page/vendor/uPlot.LICENSE", "/page/../app/keys.py", "/x"):
        assert (await house.client.get(path)).status_code == 401
        known = await house.client.get(path, headers={"authorization": "Bearer k1"})
        assert known.status_code == 404


def test_scripts_and_styles_are_files_and_of_this_server() -> None:
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", HTML)
    for file in OURS:
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(^|\s)//\s.*|/\*.*?\*/", "", text), file.path
        assert "innerHTML" not in text


def test_every_control_has_a_name() -> None:
    labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', HTML))
    inside = "".join(re.findall(r"<label.*?</label>", HTML, re.DOTALL))
    for tag, id in re.findall(r'<(input|textarea|select)\b[^>]*\bid="([^"]+)"', HTML):
        assert id in labelled or f'id="{id}"' in inside, (tag, id)
    assert '<html lang="en">' in HTML


def test_it_is_packaged_with_the_licence_of_what_it_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "app" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    licence = "app/page/vendor/uPlot.LICENSE"
    assert licence in project["project"]["license-files"]
    assert "MIT" in (ROOT / licence).read_text()
    if (ROOT / ".git").exists():  # what git ignores is in no package
        paths = [str(path) for path in FOLDER.rglob("*")]
        done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True)
        assert done.stdout == b""
