"""`scripts/build-image` with a builder that notes what it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeflow.version import __version__
from tests.benchmarks.test_image_archive import saved
from tests.deploy.dockerfile import stages

ROOT = Path(__file__).parents[2]
BUILDER = """#!/bin/sh
echo "$@" >> "$NOTES"
case $1 in
    save) cp "$SAVED" "$3" ;;
    import) cat > /dev/null ;;
    images) echo 1234 ;;
esac
"""


@pytest.fixture
def builder(tmp_path: Path) -> dict[str, str]:
    """The environment in which it is `podman`."""
    (tmp_path / "podman").write_text(BUILDER)
    (tmp_path / "podman").chmod(0o755)
    archive = saved(tmp_path / "saved.tar", 2000, "host").path
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NOTES": str(tmp_path / "notes"), "SAVED": str(archive), "BUILDER": "podman"}


def build(environment: dict[str, str], *options: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The run, and the builds that the builder was asked for."""
    command = [sys.executable, ROOT / "scripts" / "build-image", *options]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    notes = Path(environment["NOTES"])
    asked = notes.read_text().splitlines() if notes.exists() else []
    return told, [line for line in asked if line.startswith("build ")]


def test_an_image_is_named_after_its_version_and_its_layers_are_listed(builder: dict[str, str], tmp_path: Path):
    told, (asked,) = build(builder, "cpu", "--archive", str(tmp_path / "image.tar"), "--build-arg", "CPU_BASE=ubuntu")
    assert told.returncode == 0, told.stderr
    assert "--build-arg CPU_BASE=ubuntu --target cpu " in asked and f"-t edgeflow:{__version__}-cpu " in asked
    assert "COPY /opt" in told.stdout and "unpacked" in told.stdout and "stand-in" not in told.stdout
    assert (tmp_path / "image.tar").exists() and not (tmp_path / "image.saved").exists()


@pytest.mark.parametrize(("target", "dockerfile"), [("cuda", "Dockerfile"), ("jetson", "Dockerfile.jetson")])
def test_on_a_stand_in_base_nothing_is_pulled_and_what_stays_unproved_is_said(
    builder: dict[str, str], tmp_path: Path, target: str, dockerfile: str
):
    (tmp_path / "base" / "etc").mkdir(parents=True)
    (tmp_path / "base" / "etc" / "shared-folders").write_text("/wheels\n")
    told, (base, asked) = build(
        builder, target, "--base", str(tmp_path / "base"), "--archive", str(tmp_path / "image.tar")
    )
    assert told.returncode == 0, told.stderr
    assert f"--target {target} " in base and "stand-in.Dockerfile" in base
    assert "--volume /wheels:/wheels:ro" in asked and f"/{dockerfile} " in asked
    arguments = {word.split("=")[0]: word for word in asked.split() if "=" in word}
    bases = {stage.base for stage in stages(ROOT / dockerfile) if stage.name in ("build", "")}
    assert sum(word.endswith("=localhost/edgeflow-base") for word in arguments.values()) == len(bases)
    assert f"-t edgeflow:proof-{target} " in asked, "no name of an image for use"
    assert told.stdout.splitlines()[-1].startswith("Unproved: ")
    assert "rmi --force 1234" in Path(builder["NOTES"]).read_text(), "only the archive stays"


def test_without_a_builder_it_says_how_to_get_one(tmp_path: Path):
    told, _ = build({**os.environ, "BUILDER": "no-such-builder", "NOTES": str(tmp_path / "notes")})
    assert told.returncode == 1 and "apt-get install buildah" in told.stderr
