"""Checks of what a policy takes: precision, memory and time."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from types import FunctionType, ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.control.samples import uncounted
from edgeflow.engine.memory import size
from edgeflow.engine.policy import LoadOptions
from edgeflow.kernels.linear import Packed
from edgeflow.lab.conformance.subject import LoadedSubject
from edgeflow.lab.conformance.verdicts import NotConforming, NotJudged
from edgeflow.policies.registry import family_of

AGREEMENT = 0.1
"""How far answers in 16 bits may be from those in float32, as a share of their size."""
WEIGHT_FACTOR = 1.1
WEIGHT_SLACK = 1 << 16
"""The memory of weights may be so many times, and so many bytes more than what the footprint declares."""
ROUNDS, ROUND = 3, 8
"""Growth is measured over so many rounds of so many episodes."""
TIMED = 9  # answers


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSample:
    """Answers in one precision, to be compared with another."""

    dtype: str
    values: NDArray[np.float64]
    """[n, D]: actions in the units of the schema, or [n, 1]: the logits of first tokens."""

    @classmethod
    def of(cls, subject: LoadedSubject) -> PrecisionSample:
        """The answers of one policy to the frames that every load answers."""
        engine = subject.engine
        if isinstance(engine, PolicyEngine):
            engine.keep_logits = True
            with uncounted(subject.policy), subject.prompts(*subject.episode) as prompts:
                decoded = decode_serially(engine, prompts)
            engine.keep_logits = False
            rows = [frame.logits[0].double().cpu().numpy()[:, None] for frame in decoded]
        else:
            rows = [subject.bench.alone(frame).values for frame in subject.episode]
        return cls(dtype=subject.config.dtype, values=np.concatenate(rows))


def check_dtypes(subject: LoadedSubject, exact: PrecisionSample | None) -> str:
    """In 16 bits, weights are in that dtype and answers agree with float32. exact: those of float32."""
    if is_artifact(subject.config.model_path):
        raise NotJudged("exported graphs have their own precision")
    asked = getattr(torch, subject.config.dtype)
    numbers = Counter[torch.dtype]()
    for tensor in distinct(subject.policy):
        if tensor.is_floating_point():
            numbers[tensor.dtype] += tensor.numel()
    if 2 * numbers[asked] < numbers.total():
        most = str(numbers.most_common(1)[0][0]).removeprefix("torch.")
        share = numbers[asked] / numbers.total()
        found = f"asked for {subject.config.dtype}, {share:.0%} of the weights are in it, and most in {most}"
        raise NotConforming(found, "load weights in placement.dtype")
    if exact is None:
        return f"weights are in {subject.config.dtype}"
    off = deviation(exact.values, PrecisionSample.of(subject).values)
    if not off <= AGREEMENT:
        found = f"in {subject.config.dtype}, answers differ from {exact.dtype} by {off:.1%} of their size"
        raise NotConforming(f"{found}; {AGREEMENT:.0%} is allowed", "keep sums, norms and softmax in float32")
    return f"{subject.config.dtype} is {off:.1%} from {exact.dtype}"


def deviation(right: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """The root mean square difference of rows, as a share of the largest number in each column."""
    scale = np.abs(right).max(0)
    return float(np.sqrt(np.square((found - right) / np.where(scale > 0, scale, 1)).mean()))


def check_memory(subject: LoadedSubject) -> str:
    """Weights take what the footprint declares, and passes leave nothing behind."""
    grown = _growth(subject)
    path, config = subject.config.model_path, subject.config
    if is_artifact(path):
        return "nothing grows"
    options = LoadOptions(center_crop=config.center_crop)
    published = family_of(path, config.policy.family).load(path, config.policy.settings, options)
    dtype: torch.dtype = getattr(torch, config.dtype)
    declared = published.footprint(dtype).weight_bytes(dtype)
    taken = sum(_bytes(tensor) for tensor in distinct(subject.policy) if not _is_copy(tensor))
    least, most = declared / WEIGHT_FACTOR - WEIGHT_SLACK, declared * WEIGHT_FACTOR + WEIGHT_SLACK
    without_slots = taken - subject.engine.kv_bytes
    if taken > most and without_slots >= least:  # a policy may hold its slots itself
        taken = without_slots
    if not least <= taken <= most:
        advice = "count the weights in `footprint`: decoder + other are numbers, at their dtype's size"
        raise NotConforming(f"weights take {size(taken)}; the footprint declares {size(declared)}", advice)
    return f"weights {size(taken)}, declared {size(declared)}; {grown}"


def _growth(subject: LoadedSubject) -> str:
    """NotConforming for memory that grows in every round of episodes."""
    frame, bench, held = subject.episode[0], subject.bench, []
    for turn in range(ROUNDS + 1):  # the first one fills what is kept once
        for episode in range(ROUND):
            bench.alone(replace(frame, stamp_ns=frame.stamp_ns + turn * ROUND + episode))
        held.append(held_bytes(subject.policy))
    for name in held[-1]:
        least = min(after.get(name, 0) - before.get(name, 0) for before, after in pairwise(held))
        if least > 0:
            found = f"{name} grows by {size(least // ROUND)} per episode"
            raise NotConforming(found, "keep nothing per frame, stamp or session after its end; bound caches")
    return f"nothing grew in {ROUNDS * ROUND} episodes"


def held_bytes(policy: object) -> dict[str, int]:
    """Bytes of what a policy, its classes and their modules hold, by name.

    What several of them share counts for the first.
    """
    kinds = [kind for kind in type(policy).__mro__ if kind.__module__ != "builtins"]
    owners = [(type(policy).__name__, getattr(policy, "__dict__", {}))]
    owners += [(kind.__name__, vars(kind)) for kind in kinds]
    owners += [(kind.__module__, vars(sys.modules[kind.__module__])) for kind in kinds]
    roots = {f"{owner}.{name}": value for owner, values in owners for name, value in values.items()}
    roots[type(policy).__name__] = policy  # what has no name, as in slots
    seen: set[int] = set()
    places: set[int] = set()
    sizes = {}
    for name, root in roots.items():
        sizes[name] = 0
        for each in reachable(root, seen):
            if not isinstance(each, Tensor):
                sizes[name] += sys.getsizeof(each)
            elif (place := _place(each)) not in places:
                places.add(place)
                sizes[name] += _bytes(each)
    return sizes


def check_time(subject: LoadedSubject) -> str:
    """An answer takes less time than its chunk covers."""
    schema, frame = subject.schema, subject.episode[0]
    taken_ms = sorted(subject.bench.alone(frame).ns / 1e6 for _ in range(TIMED))
    middle, low, high = median(taken_ms), taken_ms[1], taken_ms[-2]
    text = f"{middle:.1f} ms per answer ({low:.1f} to {high:.1f})"
    period_ms = schema.horizon * schema.step_ms
    if schema.horizon == 1 and schema.control_rate_hz:
        period_ms = 1000 / schema.control_rate_hz
    most_ms = subject.most_ms or period_ms
    if most_ms and middle > most_ms:
        what = "--most-ms" if subject.most_ms else "its actions cover"
        advice = "the robot would wait: make passes faster, lengthen the chunk, or use a faster device"
        raise NotConforming(f"{text}; {what} {most_ms:g} ms", advice)
    return f"{text}, of {most_ms:g} ms" if most_ms else text


def distinct(root: object) -> list[Tensor]:
    """The tensors of different memory that an object holds."""
    tensors = (each for each in reachable(root, set()) if isinstance(each, Tensor))
    return list({_place(tensor): tensor for tensor in tensors}.values())


def reachable(root: object, seen: set[int]) -> Iterator[object]:
    """Everything that an object holds in containers, attributes and closures, itself included; not modules and classes.

    seen: the ids of objects that are left out; those found are added.
    """
    left = [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, FunctionType):
            left += [each.__closure__, each.__defaults__, each.__kwdefaults__]
        else:
            left += gc.get_referents(each)


def _place(tensor: Tensor) -> int:
    """The identity of the memory of a tensor. Packed weights have no storage."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _is_copy(tensor: Tensor) -> bool:
    """True for the blocks that a CPU's GEMM reads, where it keeps the weight itself too (kernels/linear.py)."""
    return tensor.layout != torch.strided and tensor.dtype == torch.float32 and tensor.numel() <= Packed.SMALL


def _bytes(tensor: Tensor) -> int:
    if tensor.layout == torch.strided:
        return tensor.untyped_storage().nbytes()
    return tensor.numel() * tensor.itemsize
