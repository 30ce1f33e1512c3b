"""What docs/clients.md tells people to do."""

import asyncio
import json
import re
import subprocess
import sys

import pytest
import yaml
from support.deployment import ROOT
from support.serving import MODEL, saying, serving

from app.model_files import DEFAULT_MODEL
from app.openapi import openapi

TEXT = "Grüße, 🦙!"
GUIDE = (ROOT / "docs/clients.md").read_text()
BASE_URL = "http://localhost:8000"
PATHS = openapi("0")["paths"]


def snippets(language: str) -> dict[str, str]:
    """The blocks of code in a language, by the heading that they are below."""
    found = {}
    for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]:
        for code in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL):
            found[section.partition("\n")[0]] = code
    return found


PYTHON, YAML = snippets("python"), snippets("yaml")


async def run(code: str) -> str:
    """What the snippet prints, run on a server that says TEXT."""
    async with serving(script=saying(TEXT)) as house:
        code = code.replace(BASE_URL, house.url).replace(DEFAULT_MODEL.name, MODEL)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "utf8", "-c", code),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()


@pytest.mark.parametrize(("method", "path"), sorted(set(re.findall(r"`(GET|POST) (/\S+)`", GUIDE))))
def test_endpoints_that_clients_use_are_served(method, path):
    assert method.lower() in PATHS[path]


def test_every_client_has_a_recipe():
    table = re.findall(r"^\| ([^|]+?) \| (?:`|whatever)", GUIDE, re.MULTILINE)
    headings = re.findall(r"^## (.*)$", GUIDE, re.MULTILINE)
    assert table == headings
    assert len(table) == 9


def test_every_snippet_goes_to_the_same_server_and_model():
    urls = set(re.findall(r"http://[\w.]+:\d+(?:/v1)?", GUIDE))
    hosts = (BASE_URL, "http://host.docker.internal:8000")
    assert urls <= {f"{host}{path}" for host in hosts for path in ("", "/v1")}
    models = set(re.findall(r"\bsmollm2[\w-]*", GUIDE))
    assert models == {DEFAULT_MODEL.name}


@pytest.mark.parametrize("client", sorted(PYTHON))
def test_python_is_python(client):
    compile(PYTHON[client], client, "exec")


async def test_openai_python_does_as_told():
    assert await run(PYTHON["openai-python"]) == TEXT


@pytest.mark.slow
async def test_langchain_does_as_told():
    pytest.importorskip("langchain_openai", reason="install the extra `clients`")
    assert await run(PYTHON["LangChain"]) == TEXT


def test_librechat_is_given_what_its_endpoints_need():
    [endpoint] = yaml.safe_load(YAML["LibreChat"])["endpoints"]["custom"]
    assert endpoint["baseURL"].endswith(":8000/v1")
    assert endpoint["models"] == {"default": [DEFAULT_MODEL.name], "fetch": True}
    assert {"name", "apiKey"} <= set(endpoint)


def test_llm_is_given_a_model():
    [model] = yaml.safe_load(YAML["llm"])
    assert set(model) == {"model_id", "model_name", "api_base"}
    assert model["api_base"] == f"{BASE_URL}/v1"


def test_locust_posts_where_chats_are_answered():
    [path] = re.findall(r'path = "(.*)"', PYTHON["Locust"])
    assert "post" in PATHS[path]
    body = re.search(r"body = (\{.*?\n        \})", PYTHON["Locust"], re.DOTALL)[1]
    keys = re.findall(r'^            "(\w+)":', body, re.MULTILINE)
    reference = PATHS[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = reference["$ref"].rpartition("/")[2]
    fields = openapi("0")["components"]["schemas"][name]["properties"]
    assert set(keys) <= set(fields), json.dumps(sorted(fields))
