"""How far a quantised decoder is from the float one: the error of each linear, and KL(float || quantised) per token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.files.quantised import quantised_block
from edgeflow.lab.quantize.outcome import QuantisationError
from edgeflow.lab.quantize.search.block import LINEARS, DecoderBlock
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors

LINEAR_ROWS = 40
"""Number of texts, or batches of frames, over whose inputs the error of linears is computed."""


@dataclass(slots=True, eq=False)
class Fidelity(QuantisationError):
    """Sums over held-out tokens. kl is in nats."""

    tokens: int = 0
    kl: float = 0.0
    nll: float = 0.0
    """The negative log likelihood, in nats."""
    agreeing: int = 0
    """Number of tokens whose most likely successor equals the float model's."""

    @property
    def kl_per_token(self) -> float:
        """Nats per token."""
        return self.kl / self.tokens

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "KL per token, nats", f"{self.kl_per_token:.4f}"
        yield "same most likely token", f"{self.agreeing / self.tokens:.1%}"

    def values(self) -> dict[str, Any]:
        return {
            "kl_per_token": self.kl_per_token,
            "nll_per_token": self.nll / self.tokens,
            "agreement": self.agreeing / self.tokens,
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """Rows after the last block [B, L, E] of each batch, for the float model and for each variant."""

    floats: list[Tensor]
    variants: dict[str, list[Tensor]]
    linear: dict[str, dict[str, float]]
    """The errors of the linears of each variant, as in Figures."""


@torch.inference_mode()
def measure(
    decoder: DecoderTensors,
    group: int,
    variants: Mapping[str, Sequence[BlockChoice]],
    texts: Sequence[Tensor],
    report: Report = lambda *_: None,
) -> dict[str, Fidelity]:
    """The fidelity of each variant, given by the choices for its blocks; without choices, a variant is round to
    nearest.

    texts: held-out token ids, int64 [L] each.
    """
    rows = torch.split(decoder.embed(torch.cat(list(texts))[None]), [len(text) for text in texts], 1)
    passed = passed_through(decoder, group, variants, rows, report)
    found = {name: Fidelity(linear=linear) for name, linear in passed.linear.items()}
    head = decoder.read_head()
    for row, text in enumerate(texts):
        report("held-out texts", row, len(texts))
        wanted = head.logits(passed.floats[row][0, :-1]).log_softmax(-1)
        for name, hidden in passed.variants.items():
            _add_tokens(found[name], wanted, head.logits(hidden[row][0, :-1]).log_softmax(-1), text[1:])
    return found


@torch.inference_mode()
def passed_through(
    decoder: DecoderTensors,
    group: int,
    variants: Mapping[str, Sequence[BlockChoice]],
    batches: Sequence[Tensor],
    report: Report = lambda *_: None,
) -> BlockRows:
    """The rows [B, L, E] of batches through all blocks of the float model and of each variant.

    Every block is read once; all variants pass through it together.
    """
    rotation = decoder.rotation(max(each.shape[1] for each in batches))
    floats = list(batches)
    hidden = {name: list(batches) for name in variants}
    linear: dict[str, dict[str, float]] = {name: {} for name in variants}
    for index, block in enumerate(decoder.blocks()):
        errors = {name: _LinearErrors(block, choices[index], group) for name, choices in variants.items()}
        for row, x in enumerate(floats):
            report("error of linears", index * len(floats) + row, decoder.config.num_hidden_layers * len(floats))
            run = block.run(x, rotation)
            floats[row] = run.hidden
            for name, error in errors.items():
                hidden[name][row] = error.quantised.run(hidden[name][row], rotation).hidden
                if row < LINEAR_ROWS:
                    error.add(run.inputs)
        for name, error in errors.items():
            linear[name] |= {decoder.block_prefix(index) + each: share for each, share in error.shares().items()}
    return BlockRows(floats, hidden, linear)


class _LinearErrors:
    """The errors of the linears of one block in one variant."""

    def __init__(self, block: DecoderBlock, choice: BlockChoice, group: int) -> None:
        self.quantised = quantised_block(block, choice, group)
        self._block = block
        self._off = {
            name: _unscaled(choice, name, self.quantised.weight(name)) - block.weight(name) for name in LINEARS
        }
        self._squares = {name: [0.0, 0.0] for name in LINEARS}  # of the error and of the output

    def add(self, inputs: Mapping[str, Tensor]) -> None:
        for name in LINEARS:
            x = inputs[name]
            self._squares[name][0] += _square(x @ self._off[name].t())
            self._squares[name][1] += _square(x @ self._block.weight(name).t())

    def shares(self) -> dict[str, float]:
        return {name: off / size if size else 0.0 for name, (off, size) in self._squares.items()}


def _unscaled(choice: BlockChoice, name: str, weight: Tensor) -> Tensor:
    """A quantised weight with its scales undone: it takes the inputs of the float one and returns its outputs."""
    into, out = choice.input_scales(name), choice.output_scales(name)
    weight = weight if into is None else weight / into
    return weight if out is None else weight * out[:, None]


def _square(x: Tensor) -> float:
    return x.square().sum(dtype=torch.float64).item()


def _add_tokens(fidelity: Fidelity, wanted: Tensor, found: Tensor, following: Tensor) -> None:
    """Add the tokens of a text: log probabilities [n, V] of both models, and the following tokens [n]."""
    fidelity.tokens += len(wanted)
    fidelity.kl += (wanted.exp() * (wanted - found)).sum(dtype=torch.float64).item()
    fidelity.nll -= found.gather(1, following[:, None]).sum(dtype=torch.float64).item()
    fidelity.agreeing += int((wanted.argmax(1) == found.argmax(1)).sum())
