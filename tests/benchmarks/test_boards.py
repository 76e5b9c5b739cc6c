"""The memory of boards: recipes fit where their titles say, and the documents state the amounts that are computed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.boards import BOARDS, GROUP, PAGE, memory
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.memory import FIXED_BYTES, choose_sessions
from edgeflow_client.errors import ConfigError

DOCS = PAGE.parents[1]
RECIPES = {
    title: (board, json.loads(block))
    for title, board, block in re.findall(
        r"^### ([^\n]+) on an? ([^\n]+ GB)$.*?```json\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
MODELS = {"act": "act", "smolvla": "smolvla", "pi05": "pi05", "openvla-7b-4bit": "openvla"}
"""Published policies by the folders of the recipes."""
STATED = {
    "OpenVLA": ("openvla", {}),
    "OpenVLA-OFT": ("openvla_oft", {"family": "openvla_oft", "preset": "libero"}),
    "ACT": ("act", {"control_rate_hz": 50}),
    "SmolVLA": ("smolvla", {"control_rate_hz": 30}),
    "π0, π0.5": ("pi0", {"control_rate_hz": 15}),
}
"""Rows of docs/policies/index.md: the policies, and their settings."""


def test_there_is_a_recipe_for_each():
    assert sorted(Path(values["model"]).name for _, values in RECIPES.values()) == sorted(MODELS)
    assert {board for board, _ in RECIPES.values()} <= BOARDS.keys()


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_is_accepted_for_the_published_layout_and_fits_its_board(title: str):
    board, values = RECIPES[title]
    config, name = ServiceConfig.model_validate(values), Path(values["model"]).name
    found = memory(MODELS[name], config, group=GROUP * name.endswith("4bit"))
    assert config.max_sessions is not None and found.robots(BOARDS[board][0]) >= config.max_sessions
    with pytest.raises(ConfigError, match=r"^policy"):
        memory(MODELS[name], ServiceConfig.model_validate({"policy": {**values["policy"], "rate": 1}}))


@pytest.mark.parametrize("title", STATED)
def test_the_page_of_policies_states_what_is_computed(title: str):
    (row,) = (
        line for line in (DOCS / "policies/index.md").read_text().splitlines() if line.startswith(f"| [{title}](")
    )
    model, settings = STATED[title]
    found = memory(model, ServiceConfig.model_validate({"policy": settings}), cameras=2 if model == "act" else 3)
    weights, robot = re.search(r"\| ([\d.]+) GB[,;] (?:([\d.]+ [MG])iB|nothing between passes) \|", row).groups()  # type: ignore[union-attr]
    assert float(weights) == round(found.weights / 1e9, len(weights.partition(".")[2]))
    if robot is None:
        assert found.need.ring == 0
    else:
        amount, unit = robot.split()
        assert float(amount) == float(f"{found.robot_bytes / 2 ** {'M': 20, 'G': 30}[unit]:.2g}")


def test_the_reserve_has_one_size_on_one_page():
    cuda = f"{FIXED_BYTES['cuda'] / 2**30:g} GiB"
    stated = f"{cuda} on CUDA and {FIXED_BYTES['cpu'] >> 20} MiB on a CPU"
    pages = {path: " ".join(path.read_text().split()) for path in DOCS.rglob("*.md")}
    assert stated in pages[DOCS / "operate/deploy.md"]
    assert [path.name for path, text in pages.items() if cuda in text] == ["deploy.md"]
    assert pages[DOCS / "operate/deploy.md"].count(cuda) == 1


def test_a_policy_without_slots_leaves_the_reserve_free():
    """OpenVLA-OFT keeps nothing for a robot, so any number fitted beside weights that did not."""
    found = memory("openvla_oft", ServiceConfig.model_validate({"policy": STATED["OpenVLA-OFT"][1]}))
    assert found.robot_bytes == 0 and found.robots(16 * 10**9) == 0
    with pytest.raises(ConfigError, match="for activations and graphs"):
        choose_sessions(1, found.need, found.need.reserve_bytes - 1)
