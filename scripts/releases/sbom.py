"""Lists of what is inside (SBOM) in CycloneDX's JSON, from the metadata of installed packages.

The same packages give the same bytes: the serial number is made of the content, and the time is that of the commit.
"""

from __future__ import annotations

import csv
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path, PurePosixPath
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.images.archive import OPAQUE, WHITEOUT, ImageArchive
from scripts.releases.wheels import ReleaseError

MOST_LICENSE = 100  # characters: longer is a licence's text
SITE = "edgeflow/service/gateway/site/"
"""Written by whichever versions of the tools for it an environment has."""
PACKAGES = ("site-packages", "dist-packages")
DPKG = "var/lib/dpkg/status"


def of_environment(root: str, made: datetime) -> str:
    """The list of a distribution and all that it needs, as installed here; extras are left out."""
    found: dict[str, Distribution] = {}
    needs: dict[str, set[str]] = {}
    waiting = [(root, "")]
    while waiting:
        name, extra = waiting.pop()
        try:
            installed = found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            raise ReleaseError(f"{name} is not installed here: make setup") from None
        for line in installed.requires or ():
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(wanted.name)
            if needed not in needs.setdefault(name, set()):
                needs[name].add(needed)
                waiting += [(needed, each) for each in ("", *wanted.extras)]
    components = {name: _python(each) for name, each in found.items()}
    bom = _bom(components[root], [each for name, each in components.items() if name != root], made)
    for name, component in components.items():
        bom.register_dependency(component, [components[each] for each in sorted(needs.get(name, ()))])
    return _text(bom)


def of_image(archive: ImageArchive, name: str, version: str, made: datetime) -> str:
    """The list of an image: its Python distributions and its packages of Debian or Ubuntu."""
    files = _metadata(archive)
    components = _pythons(files)
    release = _fields(files.get("etc/os-release", files.get("usr/lib/os-release", b"")).decode())
    system = release.get("ID", "debian").strip('"')
    for paragraph in files.get(DPKG, b"").decode().split("\n\n"):
        package = HeaderParser().parsestr(paragraph.strip())
        if package["Status"] == "install ok installed":
            components.append(_component(package["Package"], package["Version"], "deb", system))
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=name)
    bom = _bom(image, components, made)
    bom.register_dependency(image, components)
    return _text(bom)


def check_image(archive: ImageArchive, wheels: Sequence[Path]) -> None:
    """Reject an image on a stand-in base, and one whose edgeflow is another than that of the wheels."""
    if "edgeflow.stand-in" in (archive.config["config"].get("Labels") or {}):
        raise ReleaseError(f"{archive.path} was built on a stand-in base, a proof: build it without --base")
    records = {name: data for name, data in _metadata(archive).items() if name.endswith(".dist-info/RECORD")}
    installed = {}
    for data in records.values():
        installed.update(_hashes(data.decode()))
    names = {PurePosixPath(name).parent.name for name in records}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            (record,) = (name for name in packed.namelist() if name.endswith(".dist-info/RECORD"))
            hashes = _hashes(packed.read(record).decode())
        if PurePosixPath(record).parent.name not in names:
            continue  # an image has no plug-ins
        for path, digest in hashes.items():
            same = installed.get(path) == digest or (path.startswith(SITE) and path in installed)
            if not same and not path.endswith((".dist-info/RECORD", ".dist-info/WHEEL")):
                raise ReleaseError(
                    f"{archive.path} has another {path} than the release: build the image of this commit"
                )
    if not any(name.startswith("edgeflow_server-") for name in names):
        raise ReleaseError(f"{archive.path} has no edgeflow-server installed: scripts/build-image makes an image")


def _bom(root: Component, components: Iterable[Component], made: datetime) -> Bom:
    bom = Bom(components=sorted(components))
    bom.metadata.component, bom.metadata.timestamp = root, made
    bom.serial_number = uuid5(NAMESPACE_URL, "\n".join(str(each.bom_ref) for each in (root, *bom.components)))
    return bom


def _text(bom: Bom) -> str:
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _python(installed: Distribution) -> Component:
    metadata = installed.metadata
    stated = metadata.get("License-Expression") or metadata.get("License") or ""
    if not stated or len(stated) > MOST_LICENSE or "\n" in stated:
        classified = [
            line for line in metadata.get_all("Classifier", ()) if line.startswith("License :: OSI Approved ::")
        ]
        stated = classified[0].rpartition(" :: ")[2] if classified else ""
    return _component(canonicalize_name(metadata["Name"]), installed.version, "pypi", None, stated)


def _component(name: str, version: str, kind: str, namespace: str | None, licence: str = "") -> Component:
    purl = PackageURL(kind, namespace, name, version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
    )


def _pythons(files: Mapping[str, bytes]) -> list[Component]:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = PurePosixPath(name)
            if path.name == "METADATA":
                kept = Path(folder, path.parent.name, path.name)
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(data)
        return [_python(each) for each in distributions(path=[folder])]


def _metadata(archive: ImageArchive) -> dict[str, bytes]:
    """The files of an image that say what is installed, by their path in it."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive.path) as layers:
        for name in archive.manifest["Layers"]:
            with tarfile.open(fileobj=layers.extractfile(name)) as layer:
                for member in layer:
                    path = PurePosixPath(member.name)
                    if path.name.startswith(WHITEOUT):
                        gone = path.parent if path.name == OPAQUE else path.with_name(path.name.removeprefix(WHITEOUT))
                        files = {each: data for each, data in files.items() if not _within(each, str(gone))}
                    elif _says(path) and (file := layer.extractfile(member)) is not None:
                        files[str(path)] = file.read()
    return files


def _says(path: PurePosixPath) -> bool:
    """Not of what a distribution has copied from others: such metadata lies deeper."""
    named = path.name in ("METADATA", "RECORD") and path.parent.name.endswith(".dist-info")
    return (named and path.parent.parent.name in PACKAGES) or str(path) in (
        DPKG,
        "etc/os-release",
        "usr/lib/os-release",
    )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _hashes(record: str) -> dict[str, str]:
    return {path: digest for path, digest, _ in csv.reader(io.StringIO(record))}
