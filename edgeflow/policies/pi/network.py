"""The networks of π0 and π0.5 (engine/flow/packed.FlowNetwork): PaliGemma for the prefix, a Gemma expert for steps.

Published source: LeRobot's modeling_pi0.py, modeling_pi05.py and processor_pi05.py. In bfloat16 all norms and the
projections of actions, state and time stay in float32, as published, and so do the vision tower and its projector where
`policy.vision` does not say otherwise.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.policy import Placement
from edgeflow.models.checkpoint import Weights
from edgeflow.models.grouped import JOINT, HeadSizes
from edgeflow.models.shape import FlowStacks, NamedStack
from edgeflow.models.siglip import SigLIPTower, TowerSizes, products_in_tf32, projection
from edgeflow.models.stack_norms import RowTimes, StackSizes
from edgeflow.policies.flow.network import PrefixedNetwork, PrefixEmbedding, TimeEmbedding, TimeMixing
from edgeflow.policies.flow.observing import Margin
from edgeflow.policies.flow.policy import FlowArchitecture, TaskTexts, TokenizedTexts, VisionNumbers
from edgeflow.policies.pi.config import FLOAT32, MODEL, TF32, GemmaSizes, PiConfig
from edgeflow.policies.tensors import Shapes, WeightNumbers

BOTH = "paligemma_with_expert."
OLDER_TOWER = "vision_model."
"""Where the tower's tensors lie below `vision_tower.` in files of transformers before it dropped this name."""
EPS = 1e-6
EDGES = np.linspace(-1.0, 1.0, 257)[:-1]
BINS = range(-1, len(EDGES))
NORMS = "norm.dense"
"""Projections of adaptive norms, which are not kept: all that steps read of them is `PiNetwork.time_table`."""
DECODER = ("language_model.layers.", "gemma_expert.model.layers.")
FLOATS = ("input_layernorm", "post_attention_layernorm", "action_", "state_proj", "time_mlp")
VISION = ("vision_tower.", "multi_modal_projector.")
EMBEDDINGS = "vision_tower.embeddings.", "vision_tower.vision_model.embeddings."
"""The tensors of the tower that stay in float32 in any precision."""
EMBEDDING, HEADS = "language_model.embed_tokens.weight", ("gemma_expert.lm_head", "paligemma.lm_head")


class PiNetwork(PrefixedNetwork):
    """weights: by their published names, without the prefix of LeRobot."""

    def __init__(self, config: PiConfig, weights: Weights, placement: Placement) -> None:
        self._config = config
        expert, dims = config.expert, config.flow.dims
        floats = weights.to(torch.float32)
        self.decoder = stacks_of(config).decoder(weights.under(BOTH), placement.table)
        self.prefix = read_prefix(config, weights.under(BOTH + "paligemma."), placement)
        self._out = projection(floats, "action_out_proj", dims, expert.width, table=placement.table)
        if config.adaptive:
            self._time = TimeEmbedding(expert.width, config.flow.periods, placement.device)
            self._action = projection(floats, "action_in_proj", expert.width, dims, table=placement.table)
            mlp = "time_mlp" if "time_mlp_in.weight" in weights else "action_time_mlp"
            self._mlp = [_dense(floats, f"{mlp}_{part}", expert.width) for part in ("in", "out")]
        else:
            self._mixing = TimeMixing(_repaired(floats), expert.width, dims, config.flow.periods, table=placement.table)
            self._state = projection(floats, "state_proj", expert.width, config.flow.state_dims, table=placement.table)

    def time_table(self, times: Tensor) -> Tensor:
        """As in FlowNetwork: embeddings [N + 1, E'], in π0.5 the numbers of all norms [N + 1, 2 L + 1, 3, E']."""
        if self._config.adaptive:
            return self.decoder.modulation(self.condition(times))
        return self._mixing.time(times)

    def embed_step(self, x: Tensor, times: RowTimes, state: Tensor) -> tuple[Tensor, RowTimes | None]:
        """As in FlowNetwork: rows of the actions, in π0 after a row of the state."""
        if self._config.adaptive:
            condition = RowTimes(times.table, times.of_row.flatten())
            return self._action(x.float()).flatten(0, 1).to(self.decoder.dtype), condition
        rows = torch.cat([self._state(state.float())[:, None], self._mixing(x, times)], dim=1)
        return rows.flatten(0, 1).to(self.decoder.dtype), None

    def condition(self, time: Tensor) -> Tensor:
        """The condition of π0.5's norms: flow times [n] → [n, E'] float32"""
        x = self._time(time)
        for weight, bias in self._mlp:
            x = F.silu(F.linear(x, weight, bias))
        return x

    def velocity(self, hidden: Tensor) -> Tensor:
        """[n (lead + H), E'] → [n, H, A] float32"""
        rows = hidden.float().view(-1, self.rows, hidden.shape[1])
        velocity: Tensor = self._out(rows[:, self.rows - self._config.flow.chunk :])
        return velocity

    @property
    def rows(self) -> int:
        """The number of rows of a candidate in a step."""
        return self._config.flow.chunk + (not self._config.adaptive)


def stacks_of(config: PiConfig) -> FlowStacks:
    """The stacks of prefix and steps. stems: below `paligemma_with_expert.`"""
    text = config.text
    return FlowStacks(
        name="gemma",
        heads=HeadSizes(heads=text.heads, kv_heads=text.kv_heads, head_dim=text.head_dim, kinds=(JOINT,) * text.depth),
        prefix=NamedStack(sizes=_stack(text), stem="paligemma.model.language_model."),
        steps=NamedStack(sizes=_stack(config.expert, adaptive=config.adaptive), stem="gemma_expert.model."),
    )


def precision_on(device: str, asked: str | None) -> str:
    """The precision of the vision tower on a type of device."""
    return asked or (TF32 if device == "cuda" else FLOAT32)


def read_prefix(config: PiConfig, weights: Weights, placement: Placement) -> PrefixEmbedding:
    """The embedding of prefixes. weights: names below `paligemma_with_expert.paligemma.`

    Files saved from a model with tied weights have the embedding only as `lm_head`; where both are there, `lm_head` is
    not used.
    """
    vision, width = config.vision, config.text.width
    precision = precision_on(placement.device.type, config.precision)
    own = weights if precision == MODEL else weights.to(torch.float32)
    sizes = TowerSizes(
        width=vision.width,
        inner=vision.inner,
        layers=vision.depth,
        heads=vision.heads,
        patch=vision.patch,
        grid=config.flow.side // vision.patch,
    )
    found = own.under("model.vision_tower.")
    below = found.under(OLDER_TOWER) if any(name.startswith(OLDER_TOWER) for name in found) else found
    side = config.flow.side
    tower = SigLIPTower(sizes, below, side=side, table=placement.table, embeddings=torch.float32)
    project = projection(own, "model.multi_modal_projector.linear", width, vision.width, table=placement.table)
    embedding = "model.language_model.embed_tokens.weight"

    def images(pixels: Tensor) -> Tensor:
        with products_in_tf32() if precision == TF32 else nullcontext():
            return project(tower.forward(pixels))

    return PrefixEmbedding(
        image_rows=tower.patches,
        images=images,
        table=weights.take(embedding if embedding in weights else "lm_head.weight", None, width),
    )


def _repaired(weights: Weights) -> Weights:
    """π0's names of the MLP of action and time where a file has those of π0.5."""
    if "action_time_mlp_in.weight" in weights:
        return weights
    return weights.renamed({f"time_mlp_{part}": f"action_time_mlp_{part}" for part in ("in", "out")})


def _dense(weights: Weights, name: str, width: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a square projection."""
    return weights.take(f"{name}.weight", width, width), weights.take(f"{name}.bias", width)


def _stack(sizes: GemmaSizes, *, adaptive: bool = False) -> StackSizes:
    return StackSizes(
        width=sizes.width, inner=sizes.inner, eps=EPS, gelu=True, plus_one=not adaptive, adaptive=adaptive
    )


def sizes_of(config: PiConfig) -> FlowSizes:
    """The rows of answers. In π0 a row of the state leads those of the actions."""
    flow, lead = config.flow, not config.adaptive
    state = flow.state_dims if lead else 0
    return FlowSizes(steps=flow.steps, horizon=flow.chunk, dims=flow.dims, lead=int(lead), state=state)


def image_rows(config: PiConfig) -> int:
    """The number of rows of an image."""
    return (config.flow.side // config.vision.patch) ** 2


class StateTexts:
    """`Task: …, State: 12 255 -1;` and `Action: ` on a line for itself. dims: numbers of the state."""

    def __init__(self, texts: TokenizedTexts, dims: int) -> None:
        self._texts = texts
        longest = max(BINS, key=lambda number: len(texts.ids(f"State: {number} {number}")))
        self._longest = (longest,) * dims

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame."""
        return self._texts.ids(prompt_text(task, bins(state)))

    def most_rows(self, task: str) -> int:
        """The most tokens of a task with any state: every number of it takes as many as any can."""
        return len(self._texts.ids(prompt_text(task, self._longest)))


def bins(state: NDArray[np.float32]) -> tuple[int, ...]:
    """Numbers from -1 to 1 in 256 bins, 0 to 255; a number below that range is -1, one above it the last bin."""
    return tuple((np.digitize(state, EDGES) - 1).tolist())


def prompt_text(task: str, numbers: tuple[int, ...]) -> str:
    """The text of a task and of the bins of a state."""
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {cleaned}, State: {' '.join(map(str, numbers))};\nAction: "


def architecture_of(config: PiConfig) -> FlowArchitecture[PiNetwork]:
    """The architecture of a configuration. In π0.5 the prompt holds the state, within its range."""
    vision, expert, patches = config.vision, config.expert, image_rows(config)
    return FlowArchitecture(
        family=config.kind,
        flow=config.flow,
        sizes=sizes_of(config),
        stacks=stacks_of(config),
        vision=VisionNumbers(patches=patches, width=vision.width, inner=vision.inner, rows=patches),
        weights=partial(_weights, config.precision),
        time_numbers=expert.width * (3 * (2 * expert.depth + 1) if config.adaptive else 1),
        margin=Margin.AROUND,
        bounded=config.adaptive,
        texts=partial(StateTexts, dims=config.flow.state) if config.adaptive else TaskTexts,
        network=partial(PiNetwork, config),
    )


def _weights(precision: str | None, shapes: Shapes) -> WeightNumbers:
    """Without the heads of language models, which are not used but as an embedding."""
    both = any(EMBEDDING in name for name in shapes)
    heads = HEADS if both else HEADS[:1]
    floats = (*FLOATS, *(EMBEDDINGS if precision == MODEL else VISION))
    return WeightNumbers.of(shapes, decoder=DECODER, floats=floats, unused=(*heads, NORMS))
