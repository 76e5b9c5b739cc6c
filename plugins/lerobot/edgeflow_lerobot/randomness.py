"""Random numbers by frame: a batch answers each frame as if the frame were alone, whoever shares it.

A policy draws noise, or samples codes, for a whole batch with torch's own generator. Here each frame has its own
generator, and its numbers are those that torch would draw for it alone after `torch.manual_seed(seed)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SIZED = (torch.randn, torch.rand)
"""Draws of a given size, positional or `size=`."""
SHAPED = (torch.multinomial, torch.bernoulli, torch.normal)
"""Draws of the shape of their arguments; torch.normal also takes numbers and `size=`."""

Tensors = dict[str, Tensor]
Answer = Callable[[Tensors], Tensor]


class InseparableDraw(Exception):
    """A draw whose first dimension is not made of equal parts, one per frame."""


class DrawsByFrame(TorchFunctionMode):
    """Splits draws along their first dimension, in the order of the frames. seeds: of the frames."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self._seeds = seeds
        self._generators: dict[str, list[torch.Generator]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, a draw once per frame."""
        named = dict(kwargs or {})
        if func not in (*SIZED, *SHAPED) or named.get("generator") is not None:
            return func(*args, **named)
        named.pop("generator", None)
        if func in SIZED and "size" not in named:
            size = args[0] if args and not isinstance(args[0], int) else args
            args, named["size"] = (), size
        tensors = [each for each in (*args, *named.values()) if isinstance(each, Tensor) and each.ndim]
        place = tensors[0].device if tensors else torch.device(named.get("device") or torch.get_default_device())
        pairs = zip(self._parts(args), self._parts(named), self._of(place), strict=True)
        return torch.cat([func(*some, **names, generator=generator) for some, names, generator in pairs])

    def _parts(self, arguments: Any) -> list[Any]:
        """The arguments of each frame's draw."""
        count = len(self._seeds)
        if isinstance(arguments, dict):
            split = [self._split(value, sized=name == "size") for name, value in arguments.items()]
            return [dict(zip(arguments, [each[index] for each in split], strict=True)) for index in range(count)]
        split = [self._split(value) for value in arguments]
        return [tuple(each[index] for each in split) for index in range(count)]

    def _split(self, value: Any, *, sized: bool = False) -> Sequence[Any]:
        count = len(self._seeds)
        rows = value.shape[:1] if isinstance(value, Tensor) else value[:1] if sized else ()
        if not rows:
            if sized:
                raise InseparableDraw
            return [value] * count
        if rows[0] % count:
            raise InseparableDraw
        return value.chunk(count) if isinstance(value, Tensor) else [(rows[0] // count, *value[1:])] * count

    def _of(self, device: torch.device) -> list[torch.Generator]:
        """The generators of the frames on a device."""
        if str(device) not in self._generators:
            self._generators[str(device)] = [torch.Generator(device).manual_seed(seed) for seed in self._seeds]
        return self._generators[str(device)]


class FrameByFrame:
    """A function of a batch, with the draws of each frame its own. answer: [B, ...] each → [B, ...]

    A policy whose draws cannot be separated answers one frame after the other from then on.
    """

    def __init__(self, answer: Answer, device: torch.device) -> None:
        self._answer = answer
        self._device = device
        self._together = True

    def __call__(self, tensors: Tensors, seeds: Sequence[int]) -> Tensor:
        """seeds: B, of the frames."""
        if self._together and len(seeds) > 1:
            before = _state(self._device)
            try:
                with DrawsByFrame(seeds):
                    answers = self._answer({name: each.clone() for name, each in tensors.items()})
            except InseparableDraw:
                self._together = False
            else:
                if torch.equal(before, _state(self._device)):
                    return answers
                self._together = False
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            rows = []
            for index, seed in enumerate(seeds):
                torch.manual_seed(seed)
                rows.append(self._answer({name: each[index : index + 1].clone() for name, each in tensors.items()}))
        return torch.cat(rows)


def _state(device: torch.device) -> Tensor:
    """The state of torch's own generators, which change with a draw that was not split."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)
