"""The wheels of scripts/gpu-wheels: everything the service imports, and nothing that the machine has."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
ON_THE_MACHINE = {"torch", "numpy", "triton"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("gpu_wheels", str(ROOT / "scripts" / "gpu-wheels"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_wheels", loader))
    loader.exec_module(module)
    return module


def names(lines: list[str]) -> set[str]:
    return {line.partition("==")[0] for line in lines}


def requirements() -> set[str]:
    """Packages that both distributions name."""
    text = (ROOT / "pyproject.toml").read_text() + (ROOT / "client" / "pyproject.toml").read_text()
    lists = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert len(lists) == 2
    named = {re.split(r"[>=<;\[]", line.strip().strip('",'))[0] for each in lists for line in each.splitlines()}
    return named - {"edgeflow-client"}


def test_every_package_of_the_service_is_carried_but_for_what_the_machine_has(script: ModuleType):
    carried = names(script.carried(script.LOCK.read_text()))
    fetches = {"huggingface-hub"}  # imported for models of the hub only
    assert requirements() - ON_THE_MACHINE - fetches <= carried
    assert not {name for name in carried if name.startswith(("nvidia", "cuda"))} | (carried & ON_THE_MACHINE)
    assert "huggingface-hub" not in carried and {"pydantic-core", "starlette", "h11", "markupsafe"} <= carried


def test_a_package_that_the_lock_gains_is_carried(script: ModuleType):
    assert script.carried("# a comment\nnew-one==1.0 --hash=sha256:0\ntorch==2.13.0\n") == [
        "new-one==1.0 --hash=sha256:0"
    ]


def test_versions_are_locked_and_hashed(script: ModuleType):
    assert all(re.fullmatch(r"\S+==\S+ --hash=sha256:\w{64}", each) for each in script.carried(script.LOCK.read_text()))


def test_transformers_comes_with_its_hub(script: ModuleType):
    more = names(script.carried(script.LOCK.read_text(), transformers=True))
    assert more - names(script.carried(script.LOCK.read_text())) >= {"huggingface-hub", "tqdm", "pyyaml", "packaging"}
    assert len(script.TRANSFORMERS_PIN.findall(script.TESTED.read_text())) == 1
