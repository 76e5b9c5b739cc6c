"""The Kubernetes manifest: it starts the image as the image and its configuration are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import edgeflow
from edgeflow.config.service import ServiceConfig, load_config
from tests.deploy.dockerfile import image

DEPLOY = Path(__file__).parents[2] / "deploy"
PARTS = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD = PARTS["Deployment"]["spec"]["template"]
SPEC = POD["spec"]
(CONTAINER,) = SPEC["containers"]
FINAL = image(DEPLOY.parent / "Dockerfile")[1]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
MOUNTS = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
VOLUMES = {volume["name"]: volume for volume in SPEC["volumes"]}


def test_it_is_the_image_of_this_version_with_its_user_and_command():
    assert CONTAINER["image"] == f"edgeflow:{edgeflow.__version__}"
    user, group = map(int, FINAL.last("USER").split(":"))
    context = SPEC["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    assert "command" not in CONTAINER, "the image's entry point"
    command = FINAL.command("CMD")
    assert CONTAINER["args"] == [*command, "--set", "health.host=0.0.0.0"]


def test_it_has_no_needless_privileges():
    assert SPEC["securityContext"]["runAsNonRoot"] and SPEC["automountServiceAccountToken"] is False
    assert CONTAINER["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {path for path, mount in MOUNTS.items() if not mount.get("readOnly")}
    assert writable == {FINAL.last("VOLUME"), "/tmp"}


def test_the_probes_are_the_image_s_check_and_the_health_listener():
    health = json.loads(FINAL.last("HEALTHCHECK").partition("CMD ")[2])
    start, ready, live = (CONTAINER[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    assert start["exec"]["command"] == health
    assert start["periodSeconds"] * start["failureThreshold"] > ServiceConfig().timing.worker_start_s
    assert ready["httpGet"] == {"path": "/ready", "port": "health"}
    assert live["httpGet"] == {"path": "/live", "port": "health"}


def test_ports_are_the_services_and_health_is_not_published():
    config = load_config(DEPLOY / "config.json", {"health.host": "0.0.0.0"})
    assert {
        "grpc": config.grpc.port,
        "http": config.http.port,
        "health": config.health.port,
        "robots": config.frontends.port,
    } == PORTS
    published = {port["targetPort"]: port["port"] for port in PARTS["Service"]["spec"]["ports"]}
    assert published == {name: port for name, port in PORTS.items() if name != "health"}
    labels = POD["metadata"]["labels"]
    assert PARTS["Service"]["spec"]["selector"] == PARTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels


def test_what_the_configuration_names_is_mounted():
    config = load_config(DEPLOY / "config.json", {})
    for file in (config.tls.cert, config.tls.key, config.tokens_file, config.model):
        assert any(file.startswith(f"{path}/") for path in MOUNTS), file
    assert MOUNTS[FINAL.command("CMD")[2]]["subPath"] == (DEPLOY / "config.json").name
    assert {mount["name"] for mount in MOUNTS.values()} == {*VOLUMES}
    assert VOLUMES["secrets"]["secret"]["defaultMode"] & 0o007 == 0, "the service rejects files that others can read"
    assert VOLUMES["cache"]["persistentVolumeClaim"]["claimName"] == PARTS["PersistentVolumeClaim"]["metadata"]["name"]


def test_it_waits_for_the_drain_and_one_pod_has_the_gpu():
    assert SPEC["terminationGracePeriodSeconds"] * 1000 > ServiceConfig().timing.drain_ms
    deployment = PARTS["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert CONTAINER["resources"]["limits"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("line", (DEPLOY / "kubernetes.yaml").read_text().splitlines()[:2])
def test_the_objects_made_beforehand_are_those_mounted(line: str):
    _, _, _, kind, *rest = line.split()
    name = rest[1] if kind == "secret" else rest[0]
    wanted = VOLUMES["secrets"]["secret"]["secretName"] if kind == "secret" else VOLUMES["config"]["configMap"]["name"]
    assert name == wanted
