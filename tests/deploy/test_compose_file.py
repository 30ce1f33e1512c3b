"""compose.yaml is one, and its parts know each other."""

import re

import pytest
import yaml
from compose_spec import PyCompose, parse_duration
from support.deployment import DEPLOY, GRACE_S, ROOT, document

from app.config.load import load_config

COMPOSE = document("compose.yaml")
SERVICES = COMPOSE["services"]


def test_the_compose_specification_takes_it():
    compose = PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text())
    compose.validate()
    assert sorted(compose.service_names()) == ["grafana", "octavo", "prometheus"]


@pytest.mark.parametrize("wrong", ["prots: []", "stop_grace_period: soon", "networks: [nowhere]"])
def test_the_compose_specification_refuses_what_is_wrong(wrong):
    with pytest.raises(ValueError):
        PyCompose.from_yaml(f"services: {{a: {{image: a, {wrong}}}}}").validate()


def test_images_are_pinned():
    for service in SERVICES.values():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"])


def test_nothing_is_reachable_from_elsewhere():
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_answers_in_flight_are_not_cut_short():
    assert parse_duration(SERVICES["octavo"]["stop_grace_period"]) > GRACE_S
    assert load_config().server.shutdown_grace_s == GRACE_S


def test_the_server_may_do_as_little_as_it_needs():
    server = SERVICES["octavo"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]


def test_what_is_mounted_and_built_from_is_there():
    mounts = [volume for service in SERVICES.values() for volume in service["volumes"]]
    files = [volume.split(":")[0] for volume in mounts if volume.startswith(".")]
    assert files
    assert all((DEPLOY / file).exists() for file in files)
    named = {volume.split(":")[0] for volume in mounts if not volume.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    build = SERVICES["octavo"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()


def test_prometheus_scrapes_the_server_and_grafana_asks_prometheus():
    [job] = document("prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["octavo:8000"]}]
    [source] = document("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {"octavo", "prometheus"} <= set(SERVICES)


def test_grafana_finds_the_dashboard():
    [provider] = document("grafana/provisioning/dashboards/octavo.yaml")["providers"]
    folder = provider["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/octavo.json"
    assert (DEPLOY / "grafana/dashboards/octavo.json").exists()


def test_no_password_or_key_is_in_it():
    environment = {
        name: value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
    }
    assert environment["OCTAVO_SERVER__ADMIN_KEY"] is None
    assert not [name for name in environment if "PASSWORD" in name]
    assert "password" not in yaml.safe_dump(COMPOSE).lower()
