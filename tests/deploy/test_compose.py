"""The compose file, its configuration and the systemd unit: what they give the service is what it asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import edgeflow
from deploy.check_base import JETPACKS
from edgeflow.config.service import load_config
from tests.deploy.dockerfile import ImageStage, image

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = re.sub(r"\\\n\s*", "", (DEPLOY / "edgeflow.service").read_text())
DRAIN_S = 5


SUFFIXES = {"gpu": "", "cpu": "-cpu", "jetson": "-jetson", "thor": "-thor"}


@pytest.fixture(params=SUFFIXES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def service(name: str) -> dict:
    return COMPOSE["services"][name]


def final_stage(service: dict) -> ImageStage:
    build = service["build"]
    return image(DEPLOY / build["context"] / build["dockerfile"], build.get("target", ""))[1]


def unit(name: str, text: str = UNIT) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_file_keeps_the_schema_of_compose():
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout


def test_each_profile_is_one_service_with_an_image_of_this_version(name: str, service: dict):
    assert {*COMPOSE["services"]} == {*SUFFIXES} and service["profiles"] == [name]
    assert service["image"] == f"edgeflow:{edgeflow.__version__}{SUFFIXES[name]}"


def test_each_service_starts_the_image_s_command(name: str, service: dict):
    final = final_stage(service)
    on_cpu = ["--device", "cpu"] if name == "cpu" else []  # config.json says cuda
    assert service.get("command", final.command("CMD")) == [*final.command("CMD"), *on_cpu]
    assert (final.name == "cpu") == (name == "cpu")
    assert [port.split(":")[1] for port in service["ports"]] == final.last("EXPOSE").split()
    assert f"cache:{final.last('VOLUME')}" in service["volumes"]


def test_a_thor_gets_the_base_of_its_jetpack():
    arguments = COMPOSE["services"]["thor"]["build"]["args"]
    assert arguments == {"BASE": JETPACKS[7], "ARCHITECTURES": "11.0a"}
    assert "args" not in COMPOSE["services"]["jetson"]["build"], "Dockerfile.jetson's own are an Orin's"


def test_each_service_gets_its_gpu():
    (device,) = COMPOSE["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert {name for name, each in COMPOSE["services"].items() if each.get("runtime") == "nvidia"} == {"jetson", "thor"}


def test_services_have_no_needless_privileges(service):
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert writable == ["cache:/var/cache/edgeflow"] and service["tmpfs"] == ["/tmp"]


def test_the_configuration_is_one_that_starts_off_loopback_with_tls_and_tokens(service):
    """Without both, load_config rejects these addresses."""
    config = load_config(DEPLOY / "config.json", {})
    assert not config.insecure and config.warnings == []
    ports = {f"{port}:{port}" for port in (config.grpc.port, config.http.port, config.frontends.port)}
    assert set(service["ports"]) == ports
    folders = [volume.split(":")[1] for volume in service["volumes"]]
    for file in (config.tls.cert, config.tls.key, config.tokens_file, config.model):
        assert any(file.startswith(f"{folder}/") for folder in folders), file


def test_the_container_permits_the_system_calls_of_the_configuration(service):
    wanted = load_config(DEPLOY / "config.json", {}).realtime
    priority = max(wanted.front_priority, wanted.worker_priority)
    assert service["ulimits"]["rtprio"] >= priority and int(unit("LimitRTPRIO")[0]) >= priority
    assert wanted.lock_memory and service["ulimits"]["memlock"] == -1 and unit("LimitMEMLOCK") == ["infinity"]
    assert not unit("RestrictRealtime") and not unit("PrivateDevices")


def test_both_wait_for_the_drain_and_longer_for_the_start(service):
    timing = load_config(DEPLOY / "config.json", {}).timing
    assert timing.drain_ms / 1000 <= DRAIN_S
    assert int(service["stop_grace_period"].removesuffix("s")) > DRAIN_S < int(unit("TimeoutStopSec")[0])
    assert int(unit("TimeoutStartSec")[0]) > timing.worker_start_s


def test_the_unit_runs_the_images_command():
    final = final_stage(COMPOSE["services"]["gpu"])
    started = " ".join([f"/opt/edgeflow/bin/{final.command('ENTRYPOINT')[0]}", *final.command("CMD")])
    assert unit("ExecStart") == [started]
    assert "/opt/edgeflow/bin/edgeflow health --config /etc/edgeflow/config.json" in unit("ExecStartPost")[0]
    written = dict(each.split("=", 1) for each in unit("Environment"))
    assert written == {name: value for name, value in final.environment.items() if value.startswith("/var/cache/")}
    assert unit("KillMode") == ["mixed"], "SIGTERM is the front's to handle"
    assert unit("User") != ["root"] and unit("NoNewPrivileges") == ["yes"] and unit("CapabilityBoundingSet") == [""]


def test_podman_s_unit_runs_the_image_as_compose_does():
    text, service = (DEPLOY / "edgeflow.container").read_text(), COMPOSE["services"]["gpu"]
    assert (unit("Image", text), unit("PublishPort", text)) == ([service["image"]], service["ports"])
    assert (unit("Tmpfs", text), unit("PidsLimit", text)) == (service["tmpfs"], [str(service["pids_limit"])])
    assert (unit("ReadOnly", text), unit("NoNewPrivileges", text), unit("DropCapability", text)) == (
        ["true"],
        ["true"],
        ["all"],
    )
    assert unit("Ulimit", text) == [f"{name}={value}" for name, value in service["ulimits"].items()]
    inside = [volume.split(":", 1)[1] for volume in service["volumes"]]
    assert [volume.split(":", 1)[1] for volume in unit("Volume", text)] == inside
    for name in ("Restart", "RestartPreventExitStatus", "TimeoutStartSec", "StartLimitBurst", "StartLimitIntervalSec"):
        assert unit(name, text) == unit(name), "as without a container"
    assert not unit("Exec", text), "the image's command"
    assert int(unit("TimeoutStopSec", text)[0]) > int(unit("StopTimeout", text)[0]) > DRAIN_S


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path: Path):
    here = tmp_path / "edgeflow.service"
    here.write_text(UNIT.replace("/opt/edgeflow/bin/edgeflow", "/bin/true"))
    told = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")
