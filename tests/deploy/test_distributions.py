"""Both wheels, built from the tree: what each of them holds and needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('out')"
SHIPPED = {"*.json", "*.md", "*.safetensors", "*.xml", "*.jinja", "*.cpp", "*.h", "*.pyi", "py.typed"}
BUILT = {"__pycache__", "*.so"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    """The wheels by package, built from copies: setuptools writes into its source."""
    sources = {
        "edgeflow_client": ["client/edgeflow_client", "client/pyproject.toml"],
        "edgeflow": ["edgeflow", "pyproject.toml", "README.md", "LICENSE"],
    }
    folders, builds = {}, []
    for package, paths in sources.items():
        folder = folders[package] = tmp_path_factory.mktemp(package)
        for path in map(ROOT.joinpath, paths):
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns(*BUILT))
            else:
                shutil.copy(path, folder)
        builds.append(subprocess.Popen([sys.executable, "-c", BUILD], cwd=folder, stdout=subprocess.DEVNULL))
    assert [build.wait(60) for build in builds] == [0, 0]
    return {package: ZipFile(next((folder / "out").glob("*.whl"))) for package, folder in folders.items()}


def of_the_tree(folder: Path) -> set[str]:
    """The files that a wheel of a package has to hold."""
    paths = [path for pattern in (*SHIPPED, "*.py") for path in folder.rglob(pattern)]
    return {str(path.relative_to(folder.parent)) for path in paths}


def requirements(wheel: ZipFile) -> list[str]:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist") or []


def test_the_client_is_small_and_needs_three_libraries(wheels: dict[str, ZipFile]):
    wheel = wheels["edgeflow_client"]
    assert Path(str(wheel.filename)).stat().st_size < 1_000_000
    base = [re.match(r"[\w-]+", each) for each in requirements(wheel) if "extra ==" not in each]
    assert {each[0] for each in base if each} == {"grpcio", "numpy", "protobuf"}
    assert not [each for each in requirements(wheel) if "torch" in each]


@pytest.mark.parametrize(
    ("package", "folder"), [("edgeflow_client", "client/edgeflow_client"), ("edgeflow", "edgeflow")]
)
def test_a_wheel_holds_its_package_and_nothing_else(wheels: dict[str, ZipFile], package: str, folder: str):
    names = set(wheels[package].namelist())
    assert of_the_tree(ROOT / folder) - names == set()
    assert {name.split("/")[0].partition("-")[0] for name in names} - {package} <= {"edgeflow_server"}


def test_the_server_has_the_embedded_models_and_the_laboratory(wheels: dict[str, ZipFile]):
    names = set(wheels["edgeflow"].namelist())
    for model in ("policy", "flow_policy", "chat_model", "log_model"):
        assert f"edgeflow/embedded/{model}/config.json" in names
        assert any(name.startswith(f"edgeflow/embedded/{model}/") and name.endswith(".safetensors") for name in names)
    assert {"edgeflow/lab/commands/robots.py", "edgeflow/lab/demo/robot_run.py"} <= names
    assert any(each.startswith("edgeflow-client==") for each in requirements(wheels["edgeflow"]))


def test_each_wheel_has_its_command(wheels: dict[str, ZipFile]):
    for package, command in (("edgeflow_client", "edgeflow-loadtest"), ("edgeflow", "edgeflow")):
        (name,) = [name for name in wheels[package].namelist() if name.endswith("entry_points.txt")]
        assert f"{command} = " in wheels[package].read(name).decode()
