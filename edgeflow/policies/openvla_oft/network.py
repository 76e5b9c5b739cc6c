"""OpenVLA-OFT's network: OpenVLA's towers, projector and Llama, run once over the whole sequence, with two heads.

A robot's rows: BOS, the image tokens of each camera, a row for the state, the rest of the prompt, a row of zeros per
number of the chunk, and the stop token. All rows see all rows. The hidden state of a number is read one row before its
own: the first at the prompt's last token.

Published source: `predict_action` of openvla-oft's prismatic/extern/hf/modeling_prismatic.py,
prismatic/models/action_heads.py and prismatic/models/projectors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.layout import PackedLayout, Span, on_device
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.vit import gemm, norm_weights
from edgeflow.models.weights_only import read_state_dict
from edgeflow.policies.openvla.network import OpenVLAVision

LAYER_NORM_EPS = 1e-5
BLOCKS = 2
_WIDEST = 8  # bytes of a number as stored, at most
_SPARE = 1 << 20  # bytes of a file besides its numbers
STOP_ID = 2


class ActionHead:
    """[n, D * E] → [n, D]: the hidden states of an action's numbers, side by side, to the action.

    weights: `model.layer_norm1.weight`, …
    """

    def __init__(self, weights: Weights, dims: int, width: int) -> None:
        weights = weights.under("model.")
        self._norm1 = norm_weights(weights, "layer_norm1", dims * width)
        self._fc1 = gemm(weights, "fc1", width, dims * width)
        blocks = [weights.under(f"mlp_resnet_blocks.{index}.ffn.") for index in range(BLOCKS)]
        self._blocks = [(norm_weights(each, "0", width), gemm(each, "1", width, width)) for each in blocks]
        self._norm2 = norm_weights(weights, "layer_norm2", width)
        self._fc2 = gemm(weights, "fc2", dims, width)

    def __call__(self, hidden: Tensor) -> Tensor:
        x = F.relu(self._fc1(_normed(hidden, self._norm1)))
        for norm, linear in self._blocks:
            x = x + F.relu(linear(_normed(x, norm)))
        return self._fc2(_normed(x, self._norm2))


class ProprioProjector:
    """[B, P] → [B, E]: normalised states to a row each. weights: `fc1.weight`, …"""

    def __init__(self, weights: Weights, size: int, width: int) -> None:
        self._fc1, self._fc2 = gemm(weights, "fc1", width, size), gemm(weights, "fc2", width, width)

    def __call__(self, state: Tensor) -> Tensor:
        return self._fc2(F.gelu(self._fc1(state)))


def head_numbers(dims: int, width: int) -> int:
    """The number of weights of an action head."""
    wide = dims * width
    return 2 * wide + (wide + 1) * width + BLOCKS * (width + 3) * width + 2 * width + (width + 1) * dims


def proprio_numbers(size: int, width: int) -> int:
    """The number of weights of a projector of states."""
    return (size + 1) * width + (width + 1) * width


def read_weights(path: Path, numbers: int, like: Weights) -> Weights:
    """The weights of a .pt file of so many numbers, in the dtype and on the device of others; all its names may begin
    with `module.`."""
    tensors = read_state_dict(path, _WIDEST * numbers + _SPARE, strip="module.")
    return Weights.of(tensors, like.dtype, like.device, where=f"{path}: ")


def _normed(x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    weight, bias = norm
    return F.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPS)


class OFTNetwork:
    """Several robots are one pass, each in a separate KV slot. head, proprio: None where they are not used.

    Slots are reserved once, by the engine that serves the policy, and never while it serves.
    """

    def __init__(
        self,
        decoder: LlamaDecoder,
        vision: OpenVLAVision,
        device: torch.device,
        *,
        head: ActionHead | None,
        proprio: ProprioProjector | None,
    ) -> None:
        self.decoder = decoder
        self.vision = vision
        self.head = head
        self.proprio = proprio
        self.device = device
        self._stop = self.decoder.embed(on_device([STOP_ID], self.device))
        self._kv: KVSlots | None = None
        self._shared = PackedLayout.of((), device)

    def reserve(self, robots: int, rows: int) -> KVSlots:
        """The KV store of passes of so many robots, of at most so many rows each; RuntimeError where a smaller one was
        reserved before."""
        if self._kv is None:
            self._kv = self.decoder.kv_slots(robots, rounded_capacity(rows))
        kv = self._kv
        if kv.slots < robots or kv.capacity < rows:
            raise RuntimeError(
                f"{robots} robots of {rows} rows do not fit the {kv.slots} KV slots of {kv.capacity} rows: "
                "reserve them before the first pass"
            )
        return kv

    @property
    def slots(self) -> int:
        """The most robots of a pass; RuntimeError before slots are reserved."""
        if self._kv is None:
            raise RuntimeError("no KV slots are reserved: reserve them before the first pass")
        return self._kv.slots

    def image_rows(self, pixels: Tensor) -> Tensor:
        """[B, images * channels, side, side] → [B, images * patches, E], camera after camera."""
        robots, vision = len(pixels), self.vision
        each = pixels.reshape(-1, vision.channels, *pixels.shape[2:])
        return vision.project(vision.features(each)).reshape(robots, -1, self._stop.shape[1])

    def embed(self, batch: Sequence[Tensor], numbers: int) -> Tensor:
        """Pixel values, prompts [B, T], their lengths [B], and states [B, P] where there are some → rows [B, L, E].

        numbers: of the chunk.
        """
        pixels, ids, _, *states = batch
        images, texts = self.image_rows(pixels), self.decoder.embed(ids)
        if states and self.proprio is not None:
            images = torch.cat([images, self.proprio(states[0].to(images.dtype))[:, None]], dim=1)
        tail = torch.cat([self._stop.new_zeros(numbers, self._stop.shape[1]), self._stop]).expand(len(ids), -1, -1)
        return torch.cat([texts[:, :1], images, texts[:, 1:], tail], dim=1)

    def layout(self, rows: Tensor, batch: Sequence[Tensor], numbers: int, *, on_host: bool) -> PackedLayout:
        """Each robot's rows from the start of its slot, all of which see each other; sampled are those that are read.

        Rows of a prompt's padding are written after the stop token, and nobody sees them.
        """
        _, ids, counts, *_ = batch
        robots, length = rows.shape[:2]
        longest, fixed, device = ids.shape[1], length - ids.shape[1] - numbers - 1, ids.device
        place = torch.arange(length, device=device).expand(robots, -1)
        missing = (longest - counts)[:, None]
        text, tail = place < fixed + counts[:, None], place >= fixed + longest
        beyond = place + numbers + 1  # of padding: after the numbers and the stop token, which move up
        position = torch.where(text, place, torch.where(tail, place - missing, beyond))
        visibility = Visibility(torch.zeros(robots * length, 2, 2, dtype=torch.long, device=device))
        visibility.ranges[:, 0, 1] = (length - missing).expand(-1, length).flatten()
        last = (fixed + counts - 1).clamp(min=0)[:, None]  # the prompt's last token, where the first number is read
        read = torch.cat([last, place[:, fixed + longest : fixed + longest + numbers - 1]], dim=1)
        spans = tuple(Span(slot, 0, length) for slot in range(robots))
        layout = PackedLayout(
            lengths=(length,) * robots,
            reach=length,
            row_slot=torch.arange(robots, device=device).repeat_interleave(length, output_size=robots * length),
            row_position=position.flatten(),
            rope_position=position.reshape(1, -1),
            sampled_rows=(read + length * torch.arange(robots, device=device)[:, None]).flatten(),
            places=spans if on_host else None,
            visibility=visibility,
        )
        # A recording makes this layout again at each replay: what operators upload for its shape must outlive it.
        return layout if on_host else layout.sharing(self._shared, "frames")

    def read_out(self, batch: Sequence[Tensor], numbers: int, *, on_host: bool) -> Tensor:
        """A batch as in `embed` → [B * numbers, E] before the final norm.

        The last layer computes all rows: by themselves, those that are read would be a span each, which costs more than
        they save.
        """
        rows = self.embed(batch, numbers)
        layout, kv = self.layout(rows, batch, numbers, on_host=on_host), self.reserve(*rows.shape[:2])
        return self.decoder.forward(rows.flatten(0, 1), layout, kv)[layout.sampled_rows]
