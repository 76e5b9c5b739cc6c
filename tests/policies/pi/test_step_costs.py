"""The cost of a step of π0.5 in its published shape on a GPU, without one: launched kernels, and bytes that are read.

Tensors have no contents; Triton's kernels are noted, not launched.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from edgeflow.engine.policy import Placement
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.lab.gpu.subjects.random_flow import PUBLISHED
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors
from edgeflow.models.grouped import GroupLayout
from edgeflow.models.stack_norms import RowTimes
from tests.kernels.interpreted_engine import in_triton

META = torch.device("meta")
SHAPE = next(each for each in PUBLISHED if each.name == "π0.5")
EXPERT = SHAPE.config.expert
MOST_LAUNCHES = 188
"""10 in each of 18 layers, and 8 around them. One of the 10 joins the parts of attention: joined by the last block of a
tile to arrive instead, a chunk took 25.0 ms on an H200 where it takes 21.4 ms.
"""
WITHOUT_A_KERNEL = ("empty", "alias", "detach")


class Costs(TorchDispatchMode):
    """launches: names of kernels. read: bytes of each storage that was there before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.read: dict[int, int] = {}
        self._made: dict[int, Tensor] = {}  # kept, so that none takes the place of another
        monkeypatch.setattr(JITFunction, "run", lambda kernel, *given, **_: self._note(kernel.__name__, given))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given, made = (_storages(each) for each in ((args, kwargs), result))
        fresh = {key: tensor for key, tensor in made.items() if key not in given}
        self._made |= fresh
        if (fresh or function._schema.is_mutable) and not function.overloadpacket.__name__.startswith(WITHOUT_A_KERNEL):
            self._note(function.overloadpacket.__name__, (args, kwargs))
        return result

    def _note(self, name: str, given: Any) -> None:
        self.launches.append(name)
        before = {key: each for key, each in _storages(given).items() if key not in self._made}
        self.read |= {key: tensor.untyped_storage().nbytes() for key, tensor in before.items()}


def _storages(values: Any) -> dict[int, Tensor]:
    return {each.untyped_storage()._cdata: each for each in tree_leaves(values) if isinstance(each, Tensor)}


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Of one step of one frame, after a step that made what is kept."""
    found = Costs(monkeypatch)
    monkeypatch.setattr(
        RandomTensors,
        "__getitem__",
        lambda self, name: torch.empty(self._shapes[name], dtype=self._dtype, device=self._device),
    )
    sizes, prefix = SHAPE.sizes, SHAPE.prefix
    network = SHAPE.network(Placement(dtype=torch.bfloat16, device=META, table=in_triton()))
    kv = network.decoder.kv_slots(1, prefix + sizes.rows)
    places = torch.empty(3, sizes.rows, dtype=torch.long, device=META)
    joint = PackedLayout(
        lengths=(sizes.rows,),
        reach=kv.capacity,
        row_slot=places[0],
        row_position=places[1],
        rope_position=places[2:],
        sampled_rows=places[0, :0],
        places=(Span(0, prefix, sizes.rows),),
        visibility=Visibility(torch.empty(sizes.rows, 2, 2, dtype=torch.long, device=META)),
    )
    layout = GroupLayout(joint=joint, cross=None, prefixes=0, prefix_rows=0)
    x, of_row = torch.empty(1, sizes.horizon, sizes.dims, device=META), places[:1]
    with torch.inference_mode():
        times = RowTimes(network.time_table(sizes.times.to(META)), of_row)
        nothing = torch.empty(0, network.decoder.prefix_width, device=META)

        def step() -> Tensor:
            hidden, condition = network.embed_step(x, times, x[:, 0, :0])
            return network.velocity(network.decoder.forward(nothing, hidden, layout, kv, condition))

        step()
        found.launches.clear()
        found.read.clear()
        with found:
            assert step().shape == x.shape
    return found


def test_launches(costs: Costs):
    """Of a layer: four products, RoPE with the KV write, attention, the gate of the MLP and two norms."""
    assert len(costs.launches) <= MOST_LAUNCHES
    assert len(costs.launches) >= 9 * EXPERT.depth, "kernels are counted"


def test_bytes(costs: Costs):
    """The expert's weights and the slot are read, and little else: no modulation, no time MLP."""
    heads, kv = EXPERT.heads * EXPERT.head_dim, EXPERT.kv_heads * EXPERT.head_dim
    layer = EXPERT.width * (2 * heads + 2 * kv + 3 * EXPERT.inner)
    slot = 2 * kv * (SHAPE.prefix + SHAPE.sizes.rows)
    needed = EXPERT.depth * (layer + slot) * torch.bfloat16.itemsize
    assert needed <= sum(costs.read.values()) <= 1.05 * needed
