"""Manifests say what Octavo needs of a cluster, in fields that there are."""

import importlib.util
import re

import pytest
import yaml
from support.deployment import DEPLOY, GRACE_S, document, documents, series

from app.config.load import load_config
from app.openapi import openapi

CORE = ["configmap.yaml", "deployment.yaml", "disruption-budget.yaml", "service.yaml"]
NAME = {"app.kubernetes.io/name": "octavo"}
PATHS = openapi("0")["paths"]

DEPLOYMENT = document("kubernetes/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


@pytest.fixture
def config(tmp_path):
    """What the ConfigMap configures."""
    file = tmp_path / "config.yaml"
    file.write_text(document("kubernetes/configmap.yaml")["data"]["config.yaml"])
    return load_config(file)


def documents_of_kind(path: str, kind: str) -> dict:
    [only] = [each for each in documents(path) if each["kind"] == kind]
    return only


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("kubernetes_validate"), reason="install the extra `deploy`"
)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.parametrize("file", CORE)
def test_kubernetes_knows_every_field(file, version):
    import kubernetes_validate

    manifest = document(f"kubernetes/{file}")
    kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifest, "sepc": {}}, version, strict=True)


def test_kustomize_takes_them_all():
    assert document("kubernetes/kustomization.yaml")["resources"] == CORE
    assert sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")) == sorted(
        [*CORE, "kustomization.yaml"]
    )


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ("startupProbe", "/health"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ],
)
def test_probes_ask_for_what_is_served(probe, path):
    asked = CONTAINER[probe]["httpGet"]
    assert asked == {"path": path, "port": "http"}
    assert "get" in PATHS[path]
    assert CONTAINER[probe]["timeoutSeconds"] <= CONTAINER[probe]["periodSeconds"]


def test_the_first_start_may_take_minutes():
    probe = CONTAINER["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300


def test_a_pod_is_not_killed_before_its_answers_have_ended(config):
    before = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert config.server.shutdown_grace_s == GRACE_S
    assert POD["terminationGracePeriodSeconds"] > before + config.server.shutdown_grace_s


def test_it_leaves_the_service_before_it_ends():
    probe = CONTAINER["readinessProbe"]
    before = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before > probe["periodSeconds"] * probe["failureThreshold"]


def test_the_configuration_is_one_that_the_server_takes(config):
    assert config.server.host == "0.0.0.0"
    [port] = CONTAINER["ports"]
    assert port == {"name": "http", "containerPort": config.server.port}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert CONTAINER["args"] == ["serve", "--config", f"{mounts['config']}/config.yaml"]
    assert {volume["name"] for volume in POD["volumes"]} == set(mounts)


def test_variables_are_settings_that_there_are():
    names = {each["name"]: each["valueFrom"] for each in CONTAINER["env"]}
    config = load_config(
        environ={"OCTAVO_SERVER__ADMIN_KEY": "a-key", "OCTAVO_ENGINE__THREADS": "4"}
    )
    assert set(names) == {"OCTAVO_SERVER__ADMIN_KEY", "OCTAVO_ENGINE__THREADS"}
    assert config.engine.threads == 4


def test_the_admin_key_comes_from_a_secret_that_is_not_here():
    [key] = [each for each in CONTAINER["env"] if each["name"] == "OCTAVO_SERVER__ADMIN_KEY"]
    reference = key["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "octavo", "key": "admin-key", "optional": True}
    kinds = {each["kind"] for path in CORE for each in documents(f"kubernetes/{path}")}
    assert "Secret" not in kinds
    command = f"kubectl create secret generic {reference['name']} --from-literal=admin-key="
    assert command in (DEPLOY / "README.md").read_text()


def test_it_runs_as_the_user_of_the_image_and_may_do_little():
    user = POD["securityContext"]["runAsUser"]
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert f"USER {user}:" in (DEPLOY / "Dockerfile.cpu").read_text()
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False


def test_labels_find_the_pods():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert labels == NAME
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == NAME
    service = document("kubernetes/service.yaml")["spec"]
    assert service["selector"] == NAME
    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    budget = document("kubernetes/disruption-budget.yaml")["spec"]
    assert budget["selector"]["matchLabels"] == NAME


def test_draining_a_node_leaves_a_server():
    budget = document("kubernetes/disruption-budget.yaml")["spec"]["maxUnavailable"]
    assert budget < DEPLOYMENT["spec"]["replicas"]
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_annotations_tell_where_metrics_are():
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in PATHS
    assert annotations["prometheus.io/port"] == str(CONTAINER["ports"][0]["containerPort"])


# The samples' resources are no part of Kubernetes: the fields that are set, by their references.


def test_the_keda_sample_scales_the_deployment():
    sample = document("kubernetes/samples/keda.yaml")
    assert (sample["apiVersion"], sample["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = sample["spec"]
    assert spec["scaleTargetRef"] == {"name": DEPLOYMENT["metadata"]["name"]}
    assert spec["minReplicaCount"] == DEPLOYMENT["spec"]["replicas"] < spec["maxReplicaCount"]
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval"}
    assert set(spec) == known | {"cooldownPeriod", "advanced", "triggers"}
    for trigger in spec["triggers"]:
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
        assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
        # KEDA takes strings only, and one number from the query.
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert float(trigger["metadata"]["threshold"]) > 0
        assert trigger["metadata"]["query"].startswith("sum(")


def test_the_inference_pool_picks_among_the_pods():
    pool = documents_of_kind("kubernetes/samples/inference-pool.yaml", "InferencePool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    spec = pool["spec"]
    assert set(spec) == {"selector", "targetPorts", "endpointPickerRef"}
    assert spec["selector"] == {"matchLabels": NAME}
    assert spec["targetPorts"] == [{"number": CONTAINER["ports"][0]["containerPort"]}]
    picker = spec["endpointPickerRef"]
    assert set(picker) == {"name", "port", "failureMode"}
    assert picker["port"] == {"number": 9002}
    assert picker["failureMode"] in ("FailOpen", "FailClose")


def test_the_route_leads_to_the_pool():
    file = "kubernetes/samples/inference-pool.yaml"
    route = documents_of_kind(file, "HTTPRoute")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    [rule] = route["spec"]["rules"]
    pool = documents_of_kind(file, "InferencePool")
    assert rule["backendRefs"] == [
        {
            "group": pool["apiVersion"].partition("/")[0],
            "kind": pool["kind"],
            "name": pool["metadata"]["name"],
        }
    ]
    [match] = rule["matches"]
    assert match["path"]["type"] == "PathPrefix"
    assert any(path.startswith(match["path"]["value"]) for path in PATHS)


def test_names_of_vllm_that_a_picker_reads_unless_told_otherwise_are_there():
    told = re.findall(r"vllm:\w+", (DEPLOY / "kubernetes/samples/inference-pool.yaml").read_text())
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= set(told) <= set(series())


def test_the_picker_reads_metrics_that_there_are():
    settings = documents_of_kind("kubernetes/samples/inference-pool.yaml", "ConfigMap")
    picker = yaml.safe_load(settings["data"]["config.yaml"])
    assert picker["kind"] == "EndpointPickerConfig"
    plugins = {each["type"]: each.get("parameters", {}) for each in picker["plugins"]}
    extractor = plugins["core-metrics-extractor"]
    [engine] = extractor["engineConfigs"]
    assert engine["name"] == extractor["defaultEngine"]
    specs = {key: value for key, value in engine.items() if key.endswith("Spec")}
    assert specs == {
        "queuedRequestsSpec": "octavo_requests_waiting",
        "runningRequestsSpec": "octavo_requests_running",
        "kvUsageSpec": "octavo_kv_usage_ratio",
        "cacheInfoSpec": "vllm:cache_config_info",
    }
    assert set(specs.values()) <= set(series())
    assert {"block_size", "num_gpu_blocks"} <= series()["vllm:cache_config_info"]
    [profile] = picker["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= set(plugins)
    assert {each["pluginRef"] for each in profile["plugins"]} >= {
        "queue-scorer",
        "kv-cache-utilization-scorer",
        "prefix-cache-scorer",
    }
    [source] = picker["dataLayer"]["sources"]
    assert source["pluginRef"] in plugins
    assert {each["pluginRef"] for each in source["extractors"]} <= set(plugins)
