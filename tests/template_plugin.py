"""The template of a plug-in (plugins/template) as it is when installed, by the entry point of its pyproject.toml."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeflow.policies import registry

TEMPLATE = Path(__file__).parents[1] / "plugins" / "template"
Install = Callable[..., None]


def write_metadata(folder: Path, distribution: str, name: str, value: str) -> None:
    """The metadata of an installed distribution with one family, of the version 2.5."""
    about = folder / f"{distribution.replace('-', '_')}-2.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.5\n")
    (about / "entry_points.txt").write_text(f"[edgeflow.policies]\n{name} = {value}\n")


def entry_of(package: Path) -> tuple[str, str, str]:
    """The distribution of a package, and the name and value of its entry point."""
    project = (package / "pyproject.toml").read_text()
    name, value = re.search(r'policies"\]\n(\w+) = "(.*)"', project).groups()
    return re.search(r'^name = "(.*)"', project, re.MULTILINE)[1], name, value


@pytest.fixture
def template_plugin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """This process and those that it starts find the template. The result adds further families beside it, by the
    folder of their module and their metadata."""
    site = tmp_path_factory.mktemp("site")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def add(folder: Path, distribution: str, name: str, value: str) -> None:
        sys.path.extend([str(folder), *([] if str(site) in sys.path else [str(site)])])
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        write_metadata(site, distribution, name, value)
        registry.plugins.cache_clear()

    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    add(TEMPLATE, *entry_of(TEMPLATE))
    yield add
    registry.plugins.cache_clear()
