"""The table of docs/operate/jetson.md: the memory of policies on Jetson boards, and the robots that they serve there.

Nothing is measured here: `python -m benchmarks.pages` puts the table into the page. The sum is the one by which the
service decides at its start (edgeflow/worker/build.py), of checkpoints whose files have the published sizes and no
numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat.build import chat_bytes
from edgeflow.engine.memory import MOST_SESSIONS, KVNeed, sessions_that_fit, size
from edgeflow.engine.placement import choose_dtype, choose_graphs
from edgeflow.engine.policy import LoadOptions
from edgeflow.model_paths import resolve_model
from edgeflow.policies.registry import family_of
from edgeflow.worker.build import kv_need
from tests.policies.published import write_sized

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "jetson.md"
BEGIN, END = "<!-- memory: written by `python -m benchmarks.pages` -->\n", "<!-- end of memory -->\n"
CUDA = torch.device("cuda")
GB = 10**9
SYSTEM_BYTES = 4 * GB
"""Linux, CUDA's contexts and the processes of the service; an assumption."""
BOARDS = {
    "Orin Nano 8 GB": (8 * GB, "68"),
    "Orin NX 16 GB": (16 * GB, "102"),
    "AGX Orin 64 GB": (64 * GB, "205"),
    "Thor 128 GB": (128 * GB, "273"),
}
"""Memory in bytes and bandwidth in GB/s, by board."""
GROUP = 64
"""G of `edgeflow quantize` for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPolicy:
    """A row of the table."""

    title: str
    model: str
    """An embedded policy, or a published one (tests/policies/published.write_sized)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The section `policy` of the configuration."""
    cameras: int = 3
    group: int = 0
    """G of weights in 4 bits; 0 for floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMemory:
    """The memory of a policy, in bytes."""

    weights: int
    need: KVNeed

    @property
    def robot_bytes(self) -> int:
        """Memory of each robot."""
        return self.need.total_bytes(1) - self.need.total_bytes(0)

    @property
    def total_bytes(self) -> int:
        """With one robot and all else on the board."""
        return SYSTEM_BYTES + self.weights + self.need.total_bytes(1)

    def robots(self, board_bytes: int) -> int:
        """The robots that fit on a board."""
        return sessions_that_fit(self.need, board_bytes - SYSTEM_BYTES - self.weights)


POLICIES = (
    BoardPolicy(title="`demo`, embedded", model="demo"),
    BoardPolicy(title="`demo-flow`, embedded", model="demo-flow"),
    BoardPolicy(title="ACT, two cameras", model="act", cameras=2, settings={"control_rate_hz": 50}),
    BoardPolicy(title="SmolVLA", model="smolvla", settings={"control_rate_hz": 30}),
    BoardPolicy(title="π0, π0.5", model="pi05", settings={"control_rate_hz": 15}),
    BoardPolicy(title="π0.5, 4 bits", model="pi05", settings={"control_rate_hz": 15}, group=GROUP),
    BoardPolicy(title="OpenVLA-7B", model="openvla"),
    BoardPolicy(title="OpenVLA-7B, 4 bits", model="openvla", group=GROUP),
    BoardPolicy(
        title="OpenVLA-OFT, `libero`", model="openvla_oft", settings={"family": "openvla_oft", "preset": "libero"}
    ),
)


def memory(model: str, config: ServiceConfig, *, cameras: int = 3, group: int = 0) -> PolicyMemory:
    """The memory of a policy on CUDA with this configuration; StartErrors for settings that it does not take.

    model, cameras, group: as in BoardPolicy; they stand for `config.model`.
    """
    if model.startswith("demo"):
        return memory_of(resolve_model(model), config)
    with tempfile.TemporaryDirectory() as folder:
        return memory_of(write_sized(Path(folder), model, cameras=cameras, group=group), config)


def memory_of(directory: Path, config: ServiceConfig) -> PolicyMemory:
    """The memory of a checkpoint, by its JSON files and the headers of its weights."""
    family, dtype = family_of(directory, config.policy.family), choose_dtype(config.dtype, CUDA)
    family.check(directory, config.policy.settings)
    options = LoadOptions(center_crop=config.center_crop)
    footprint = family.load(directory, config.policy.settings, options).footprint(dtype)
    graphs = footprint.graphs and choose_graphs(config.graphs, CUDA, dtype)
    need = kv_need(config, footprint, CUDA, spare=int(graphs), chat_bytes=chat_bytes(config, CUDA))
    return PolicyMemory(weights=footprint.weight_bytes(dtype, config.weights), need=need)


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """The table, and the units and the assumption of its columns."""
    heads = ["policy<!-- source: computed, not measured -->", "weights", "each robot", "reserve", "total, one robot"]
    smallest, *others = BOARDS
    rows = [[*heads, smallest, f"{smallest}, with chat", *others]]
    rows.append(["---"] * len(rows[0]))
    for each in POLICIES:
        plain, chatting = (
            memory(each.model, _config(each, chat=chat), cameras=each.cameras, group=each.group)
            for chat in (False, True)
        )
        amounts = (plain.weights, plain.robot_bytes, plain.need.reserve_bytes, plain.total_bytes)
        fits = [plain.robots(board) for board, _ in BOARDS.values()]
        fits.insert(1, chatting.robots(BOARDS[smallest][0]))
        rows.append([each.title, *map(_gib, amounts), *(str(robots or "no") for robots in fits)])
    rates = [rate for _, rate in BOARDS.values()]
    rows.append(["bandwidth, GB/s", *[""] * 4, rates[0], *rates])
    chat = size(chat_bytes(ServiceConfig(), CUDA))
    return "".join("| " + " | ".join(row) + " |\n" for row in rows) + (
        f"\nMemory in GiB; below a board, the robots that fit, at most {MOST_SESSIONS} unless `max_sessions` asks for "
        f"more. The total has\n{SYSTEM_BYTES // GB} GB for Linux, CUDA and the service's processes: an assumption. "
        f"Chat is the embedded model, {chat}.\n"
    )


def _config(policy: BoardPolicy, *, chat: bool) -> ServiceConfig:
    return ServiceConfig.model_validate({"policy": policy.settings, "chat": {"enabled": chat}})


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f}"
