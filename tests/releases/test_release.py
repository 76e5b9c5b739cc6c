"""A release: what it refuses, the same bytes from the same commit, lists of what is inside."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from benchmarks.images.archive import ImageArchive
from scripts.releases import __main__ as releases
from scripts.releases import wheels
from scripts.releases.sbom import check_image, of_environment, of_image
from scripts.releases.wheels import CLIENT, ROOT, ReleaseError, build_wheels

MADE = datetime(2026, 11, 26, tzinfo=timezone.utc)
CHANGELOG = "# Changelog\n\n## 1.2.0 - 2026-11-26\n\nThe first.\n\n## 1.1.0 - 2026-11-01\n\nBefore.\n"
SERVER = "edgeflow_server-1.2.0.dist-info"
PYTHON = "opt/edgeflow/lib/python3.11/site-packages"


def run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch) -> Path:
    """A small repository, of which a release is made; one commit."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path)
    for module in (releases, wheels):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(releases, "RECORDS", tmp_path / "releases")
    return tmp_path


def commit(folder: Path) -> None:
    run(folder, "git", "add", "-A")
    author = ["-c", "user.name=edgeflow", "-c", "user.email=edgeflow@localhost"]
    run(folder, "git", *author, "commit", "-qm", "a commit")


def refusal(folder: Path, capsys) -> str:
    assert releases.main(["--out", str(folder / "out")]) == 1
    return str(capsys.readouterr().err)


def test_a_tree_with_changes_is_not_released(repository: Path, capsys):
    (repository / "new.py").write_text("")
    assert refusal(repository, capsys) == "a release is made of a commit; commit these changes:\n  ?? new.py\n"


def test_a_version_is_released_once(repository: Path, capsys):
    (repository / "releases").mkdir()
    (repository / "releases" / "1.2.0.json").write_text('{"version": "1.2.0", "commit": "0123456789abcdef"}')
    assert refusal(repository, capsys).startswith("1.2.0 was released from 0123456789ab: ")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("## 1.2.0", "## 1.3.0", "CHANGELOG.md has no section 1.2.0"),
        ("The first.", "", "CHANGELOG.md has no section 1.2.0"),
        ("## 1.2.0", "## Unreleased\n\nMore.\n\n## 1.2.0", "CHANGELOG.md has lines under Unreleased"),
    ],
)
def test_the_changelog_has_a_section_of_the_version_and_nothing_after_it(before: str, after: str, text: str):
    with pytest.raises(ReleaseError, match=f"^{text}"):
        releases.notes_of("1.2.0", CHANGELOG.replace(before, after))


def test_notes_are_the_section_of_the_version():
    assert releases.notes_of("1.2.0", CHANGELOG) == "# edgeflow 1.2.0\n\nThe first.\n"


def test_the_last_release_has_the_highest_version(repository: Path):
    (repository / "releases").mkdir()
    for version in ("1.9.0", "1.10.0", "0.1.0"):
        (repository / "releases" / f"{version}.json").write_text(json.dumps({"version": version}))
    assert releases.last_release() == {"version": "1.10.0"}


def test_a_wheel_has_the_same_bytes_whatever_the_umask_time_zone_and_folder(tmp_path: Path, monkeypatch):
    digests = set()
    for umask, zone in ((0o022, "UTC"), (0o077, "Asia/Tokyo")):
        folder = tmp_path / zone / "temporary"
        folder.mkdir(parents=True)
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        before = os.umask(umask)
        try:
            build_wheels("HEAD", tmp_path / zone, (CLIENT,))
        finally:
            os.umask(before)
        (wheel,) = (tmp_path / zone).glob("*.whl")
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_environment_is_listed_with_licences_and_needs():
    text = of_environment("edgeflow-client", MADE)
    assert text == of_environment("edgeflow-client", MADE)
    listed = json.loads(text)
    assert listed["metadata"]["component"]["name"] == "edgeflow-client"
    assert listed["metadata"]["timestamp"] == "2026-11-26T00:00:00+00:00"
    found = {each["name"]: each for each in listed["components"]}
    assert {"grpcio", "numpy", "protobuf"} <= set(found) and "pillow" not in found, "extras are left out"
    assert found["grpcio"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert found["grpcio"]["purl"].startswith("pkg:pypi/grpcio@")
    needs = {each["ref"].split("@")[0]: each.get("dependsOn", []) for each in listed["dependencies"]}
    assert [ref.split("@")[0] for ref in needs["pkg:pypi/edgeflow-client"]] == [
        f"pkg:pypi/{name}" for name in ("grpcio", "numpy", "protobuf")
    ]


def archive(path: Path, *layers: Mapping[str, str], labels: Mapping[str, str] | None = None) -> ImageArchive:
    """An image whose layers have these files."""
    with tarfile.open(path, "w") as packed:
        names = [f"{index}.tar" for index in range(len(layers))]
        for name, layer in zip(names, layers, strict=True):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as files:
                for file, text in layer.items():
                    add(files, file, text.encode())
            add(packed, name, inner.getvalue())
        add(packed, "config.json", json.dumps({"config": {"Labels": labels}}).encode())
        add(packed, "manifest.json", json.dumps([{"Config": "config.json", "Layers": names}]).encode())
    return ImageArchive(path)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def test_an_image_is_listed_as_its_last_layer_leaves_it(tmp_path: Path):
    def metadata(name: str, version: str, licence: str = "MIT") -> dict[str, str]:
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {licence}\n"
        return {f"{PYTHON}/{name}-{version}.dist-info/METADATA": text}

    dpkg = "Package: libc6\nStatus: {} ok {}\nVersion: 2.36-9\n"
    status = dpkg.format("install", "installed") + "\n" + dpkg.format("deinstall", "config-files").replace("6", "5")
    image = archive(
        tmp_path / "image.tar",
        {"etc/os-release": 'NAME="Debian"\nID=debian\n', "var/lib/dpkg/status": status} | metadata("old", "1.0"),
        metadata("edgeflow_server", "1.2.0", "Apache-2.0") | {f"{PYTHON}/.wh.old-1.0.dist-info": ""},
    )
    listed = json.loads(of_image(image, "edgeflow-1.2.0-cpu", "1.2.0", MADE))
    assert {each["purl"] for each in listed["components"]} == {
        "pkg:deb/debian/libc6@2.36-9",
        "pkg:pypi/edgeflow-server@1.2.0",
    }


def test_an_image_of_another_tree_is_not_released(tmp_path: Path):
    record = "edgeflow/cli.py,sha256={},10\nedgeflow/service/gateway/site/index.html,sha256={},10\n"
    wheel = tmp_path / "edgeflow_server-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(f"{SERVER}/RECORD", record.format("aa", "bb") + f"{SERVER}/RECORD,,\n")

    def image(*digests: str, folder: str = SERVER) -> ImageArchive:
        return archive(tmp_path / "image.tar", {f"{PYTHON}/{folder}/RECORD": record.format(*digests)})

    check_image(image("aa", "cc"), [wheel])  # the site is written by other versions of its tools
    with pytest.raises(ReleaseError, match=r"another edgeflow/cli\.py than the release"):
        check_image(image("ab", "bb"), [wheel])
    with pytest.raises(ReleaseError, match="has no edgeflow-server"):
        check_image(image("aa", "bb", folder="other-1.0.dist-info"), [wheel])
    proof = archive(tmp_path / "image.tar", labels={"edgeflow.stand-in": "no CUDA"})
    with pytest.raises(ReleaseError, match="a proof: build it without --base"):
        check_image(proof, [wheel])


@pytest.mark.night
def test_two_runs_make_the_same_files(tmp_path: Path):
    """In a clone, in which all lines of the changelog are of the version."""
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", str(ROOT), str(clone))
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("\n## Unreleased\n", "\n"))
    for record in (clone / "releases").glob("*.json"):
        record.unlink()
    commit(clone)
    for out in ("one", "two"):
        run(clone, sys.executable, "-m", "scripts.releases", "--out", str(tmp_path / out))
    version = json.loads(next((clone / "releases").glob("*.json")).read_text())["version"]
    folder = tmp_path / "one" / version
    run(folder, "sha256sum", "--check", "--strict", "SHA256SUMS")
    assert (folder / "SHA256SUMS").read_text() == (tmp_path / "two" / version / "SHA256SUMS").read_text()
    names = {path.name for path in folder.iterdir()}
    assert names == {"NOTES.md", "SHA256SUMS", f"edgeflow_server-{version}.cdx.json"} | {
        f"edgeflow_{name}-{version}-py3-none-any.whl" for name in ("client", "server", "lerobot")
    }
    with zipfile.ZipFile(folder / f"edgeflow_server-{version}-py3-none-any.whl") as packed:
        assert "edgeflow/service/gateway/site/index.html" in packed.namelist()
