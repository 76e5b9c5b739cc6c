"""A tiny flow policy of random weights: cameras, words and a state vector in, chunks by Euler steps out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, PolicyInputs, StageProgram
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RTCSettings
from edgeflow.engine.flow.packed import PackedStages
from edgeflow.engine.policy import Vectors
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.models.checkpoint import Weights
from edgeflow.models.grouped import CROSS, JOINT, GroupedDecoder, HeadSizes
from edgeflow.models.stack_norms import RowTimes, StackSizes
from edgeflow_client.types import ActionSchema, StateSpec

CPU = torch.device("cpu")
STATE, VOCABULARY, SIDE = 3, 32, 8
PATCHES = 4  # rows of a camera
INPUTS = PolicyInputs(
    cameras=(CameraNeed(name="top", width=SIDE, height=SIDE), CameraNeed(name="wrist", width=SIDE, height=SIDE)),
    state=(StateSpec(name="joints", size=STATE),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A network. kinds: of its layers. adaptive: the norms of the expert take a condition."""

    sizes: FlowSizes
    kinds: tuple[str, ...] = (JOINT, JOINT)
    adaptive: bool = False
    width: int = 24
    expert: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8

    @property
    def stacks(self) -> tuple[HeadSizes, StackSizes, StackSizes]:
        heads = HeadSizes(heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, kinds=self.kinds)
        prefix = StackSizes(width=self.width, inner=2 * self.width, eps=1e-6, gelu=self.adaptive)
        suffix = StackSizes(width=self.expert, inner=2 * self.expert, eps=1e-6, adaptive=self.adaptive)
        return heads, prefix, suffix


JOINT_SHAPE = Shape(sizes=FlowSizes(steps=4, horizon=5, dims=3, lead=1, causal=True, state=STATE))
CROSS_SHAPE = Shape(
    sizes=FlowSizes(steps=3, horizon=4, dims=3, closing=1, causal=True, candidates=2), kinds=(JOINT, CROSS) * 2
)
ADAPTIVE_SHAPE = Shape(sizes=FlowSizes(steps=5, horizon=6, dims=2, candidates=3), adaptive=True)
SHAPES = {"joint": JOINT_SHAPE, "cross": CROSS_SHAPE, "adaptive": ADAPTIVE_SHAPE}


def weights_of(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    """All tensors of a network: `prefix.` and `suffix.` as in GroupedDecoder, and what embeds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator) / math.sqrt(sizes[-1])

    heads, prefix, suffix = shape.stacks
    found = {}
    for stack, name in ((prefix, "prefix"), (suffix, "suffix")):
        width = stack.width
        for index, kind in enumerate(shape.kinds):
            layer = f"{name}.layers.{index}"
            crossing = kind == CROSS and name == "suffix"
            inputs = heads.kv_width if crossing else width
            found |= {
                f"{layer}.self_attn.q_proj.weight": normal(heads.q_width, width),
                f"{layer}.self_attn.k_proj.weight": normal(heads.kv_width, inputs),
                f"{layer}.self_attn.v_proj.weight": normal(heads.kv_width, inputs),
                f"{layer}.self_attn.o_proj.weight": normal(width, heads.q_width),
                f"{layer}.mlp.gate_proj.weight": normal(stack.inner, width),
                f"{layer}.mlp.up_proj.weight": normal(stack.inner, width),
                f"{layer}.mlp.down_proj.weight": normal(width, stack.inner),
            }
        norms = [
            f"layers.{i}.{norm}"
            for i in range(len(shape.kinds))
            for norm in ("input_layernorm", "post_attention_layernorm")
        ]
        for norm in (*norms, "norm"):
            if stack.adaptive:
                found[f"{name}.{norm}.dense.weight"] = normal(3 * width, width)
                found[f"{name}.{norm}.dense.bias"] = torch.randn(3 * width, generator=generator) / 4
            else:
                found[f"{name}.{norm}.weight"] = 1 + torch.randn(width, generator=generator) / 8
    sizes = shape.sizes
    return found | {
        "patch": normal(shape.width, 3 * SIDE * SIDE // PATCHES),
        "words": normal(VOCABULARY, shape.width) * 4,
        "closing": normal(shape.width, STATE),
        "action_in": normal(shape.expert, sizes.dims),
        "time": torch.randn(shape.expert, generator=generator),
        "lead": normal(shape.expert, STATE),
        "action_out": normal(sizes.dims, shape.expert),
    }


class TinyNetwork:
    """edgeflow.engine.flow.packed.FlowNetwork"""

    def __init__(
        self,
        shape: Shape,
        weights: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        table: OperatorTable,
    ) -> None:
        self.shape = shape
        stored = Weights.of(weights, dtype, device)
        heads, prefix, suffix = shape.stacks
        self.decoder = GroupedDecoder(
            heads, (prefix, stored.under("prefix.")), (suffix, stored.under("suffix.")), name="tiny", table=table
        )
        self._weights = {name: stored[name] for name in weights if not name.startswith(("prefix.", "suffix."))}
        self.dtype = dtype

    def prefix_rows(self, cameras: int, tokens: int) -> int:
        return PATCHES * cameras + tokens + self.shape.sizes.closing

    def embed_prefix(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        weights = self._weights
        found = []
        for pixels, ids, own in zip(pixel_values, prompt_ids, state, strict=True):
            patches = pixels.to(self.dtype).reshape(len(pixels) * PATCHES, -1)
            parts = [patches @ weights["patch"].T, weights["words"][ids]]
            if self.shape.sizes.closing:
                parts.append((own.to(self.dtype) @ weights["closing"].T)[None])
            found.append(torch.cat(parts))
        return found

    def time_table(self, times: Tensor) -> Tensor:
        turned = torch.sin(times[:, None].to(self.dtype) * 3 + self._weights["time"])  # [N + 1, E']
        return self.decoder.modulation(turned) if self.shape.adaptive else turned

    def embed_step(self, x: Tensor, times: RowTimes, state: Tensor) -> tuple[Tensor, RowTimes | None]:
        weights, sizes = self._weights, self.shape.sizes
        rows = x.to(self.dtype) @ weights["action_in"].T  # [n, H, E']
        condition = RowTimes(times.table, times.of_row.flatten()) if self.shape.adaptive else None
        if condition is None:
            rows = rows + times.table[times.of_row]
        if sizes.lead:
            rows = torch.cat([(state.to(self.dtype) @ weights["lead"].T)[:, None], rows], dim=1)
        return rows.flatten(0, 1), condition

    def velocity(self, hidden: Tensor) -> Tensor:
        sizes = self.shape.sizes
        rows = hidden.view(-1, sizes.rows, hidden.shape[-1])[:, sizes.lead :]
        return (rows @ self._weights["action_out"].T).float()


class TinyFlowPolicy:
    """edgeflow.engine.flow.policy.FlowPolicy; the actions of a schema are the first two numbers of a latent."""

    inputs = INPUTS
    unnorm_keys = ("plain",)
    unusual_states = 0
    most = math.inf  # of an action

    def __init__(
        self,
        shape: Shape = JOINT_SHAPE,
        *,
        seed: int = 0,
        rtc: RTCSettings | None = None,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        table: OperatorTable | None = None,
    ) -> None:
        self.shape = shape
        self.sizes = shape.sizes
        self.rtc = rtc
        self.device = device
        self.dtype = dtype
        self.weights = weights_of(shape, seed)
        self.network = TinyNetwork(shape, self.weights, device, dtype, table or built_in_table())
        self.fixed_rows = PATCHES * len(INPUTS.cameras) + shape.sizes.closing

    frame_shape = (len(INPUTS.cameras), 3, SIDE, SIDE), STATE

    def stages(self, slots: int, capacity: int) -> PackedStages:
        return PackedStages(self.network, self.sizes, slots, capacity)

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        return self.sizes.program

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        return len(instruction.split())

    def prepare(self, observation: Observation) -> FlowFrame:
        images = [np.frombuffer(each.data, np.uint8).copy() for each in observation.images.values()]
        pixels = torch.stack([torch.from_numpy(each).view(SIDE, SIDE, 3).permute(2, 0, 1) for each in images])
        generator = torch.Generator().manual_seed(int(images[0][0]))
        sizes = self.sizes
        return FlowFrame(
            pixel_values=pixels.float() / 255,
            prompt_ids=tuple(len(word) % VOCABULARY for word in observation.instruction.split()),
            state=torch.tensor(observation.state["joints"], dtype=torch.float32),
            noise=torch.randn(sizes.candidates, sizes.horizon, sizes.dims, generator=generator),
        )

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        return (values[:, :2] * 2.0).clip(-self.most, self.most)

    def normalised(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        return actions / 2.0

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        return ActionSchema(
            names=("a", "b"),
            units=("1", "1"),
            low=(-100.0, -100.0),
            high=(100.0, 100.0),
            relative=(False, False),
            horizon=self.sizes.horizon,
            step_ms=20.0,
        )


def random_frames(shape: Shape, count: int, seed: int = 0) -> list[FlowFrame]:
    """Frames of one or two cameras, of different texts."""
    generator = torch.Generator().manual_seed(seed)
    sizes, frames = shape.sizes, []
    for _ in range(count):
        cameras, words = (int(torch.randint(1, most, (1,), generator=generator)) for most in (3, 6))
        frames.append(
            FlowFrame(
                pixel_values=torch.randn(cameras, 3, SIDE, SIDE, generator=generator),
                prompt_ids=tuple(torch.randint(VOCABULARY, (words,), generator=generator).tolist()),
                state=torch.randn(STATE, generator=generator),
                noise=torch.randn(sizes.candidates, sizes.horizon, sizes.dims, generator=generator),
            )
        )
    return frames
