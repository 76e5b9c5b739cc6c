"""Make a release: `scripts/release`; docs/develop/releases.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.images.archive import ImageArchive
from scripts.releases.sbom import check_image, of_environment, of_image
from scripts.releases.wheels import ROOT, ReleaseError, build_wheels, git

RECORDS = ROOT / "releases"
"""A file per release, by which tests find the last one."""
SUMS = "SHA256SUMS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a release, or say why not; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/release", description="Make a release of the current commit.")
    image = "an archive by scripts/build-image, to be released too; may be repeated"
    parser.add_argument("--image", type=Path, action="append", default=[], metavar="FILE", help=image)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release", metavar="FOLDER")
    asked = parser.parse_args(arguments)
    try:
        made = release(asked.out, asked.image)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(f"{path.stat().st_size / 1e6:8.1f} MB  {path}" for path in sorted(made.iterdir())))
    if not asked.image:
        print("Made without an image: scripts/build-image cpu, then --image FILE.")
    return 0


def release(out: Path, images: Sequence[Path]) -> Path:
    """Write the files of a release of the current commit into a new folder of `out`, and its record; the folder."""
    version = _version()
    notes = notes_of(version, (ROOT / "CHANGELOG.md").read_text())
    commit = _commit(version)
    made = datetime.fromtimestamp(int(git("show", "-s", "--format=%ct", commit)), timezone.utc)
    folder = out / version
    if folder.exists() and not (folder / SUMS).exists():
        raise ReleaseError(f"{folder} is there, and not by scripts/release: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        new = Path(scratch) / version
        new.mkdir()
        build_wheels(commit, new)
        (new / "NOTES.md").write_text(notes)
        (new / f"edgeflow_server-{version}.cdx.json").write_text(of_environment("edgeflow-server", made))
        for path in images:
            archive = ImageArchive(path)
            check_image(archive, [*new.glob("*.whl")])
            (new / f"{path.stem}.cdx.json").write_text(of_image(archive, path.stem, version, made))
            shutil.copyfile(path, new / path.name)
        sums = {path.name: _sha256(path) for path in sorted(new.iterdir())}
        (new / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    record = {"version": version, "commit": commit, "wheels": {k: v for k, v in sums.items() if k.endswith(".whl")}}
    RECORDS.mkdir(exist_ok=True)
    _record(version).write_text(json.dumps(record, indent=1) + "\n")
    return folder


def notes_of(version: str, changelog: str) -> str:
    """The section of a version in the changelog; ReleaseError if it is missing, or there are unreleased lines."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    texts = {}
    for section in sections:
        title, _, text = section.partition("\n")
        texts[title.split()[0]] = text.strip()
    if not texts.get(version):
        raise ReleaseError(f"CHANGELOG.md has no section {version}: what is new in it?")
    if texts.get("Unreleased"):
        raise ReleaseError(
            f"CHANGELOG.md has lines under Unreleased, and pyproject.toml has version {version}: give the section the "
            "version to release, and state that version everywhere (tests/test_project_files.py names the files)"
        )
    return f"# edgeflow {version}\n\n{texts[version]}\n"


def last_release() -> dict[str, Any] | None:
    """The record of the highest version; None before the first release."""
    records = [json.loads(path.read_text()) for path in RECORDS.glob("*.json")]
    return max(records, key=lambda each: Version(each["version"]), default=None)


def _version() -> str:
    stated = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    return stated[1]


def _commit(version: str) -> str:
    """The current commit, to which the tree must be equal."""
    record = _record(version)
    changes = git("status", "--porcelain", "--", ".", f":!{record.relative_to(ROOT)}")
    if changes:
        lines = changes.splitlines()
        more = f"\n  and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise ReleaseError("a release is made of a commit; commit these changes:\n  " + "\n  ".join(lines[:5]) + more)
    commit = git("rev-parse", "HEAD")
    if record.exists() and (released := json.loads(record.read_text())["commit"]) != commit:
        raise ReleaseError(
            f"{version} was released from {released[:12]}: check that commit out to make it again, or raise the version"
        )
    return commit


def _record(version: str) -> Path:
    return RECORDS / f"{version}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
