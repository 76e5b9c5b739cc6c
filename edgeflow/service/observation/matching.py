"""Matches what a robot sends with what the policy needs: cameras and state vectors, by name. Pure.

The configuration's names win; then equal names, where the field's keys stand for their last part
(`observation.images.top` is `top`, `observation.state` is `state`). A camera that the checkpoint does not name may
also be the robot's first. What the policy does not need is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Protocol, TypeVar

from edgeflow.config import ServiceConfig
from edgeflow.errors import FailedPrecondition, InvalidArgument
from edgeflow.ipc.channel import MAX_PAYLOAD_BYTES
from edgeflow.reasons import Reason
from edgeflow.service.observation.describe import camera_text, joined, list_text, need_text, state_text
from edgeflow.service.sessions.requests import OpenRequest
from edgeflow.types import CameraNeed, CameraSpec, PolicyInputs, StateSpec

PREFIXES = ("observation.images.", "observation.")
CAMERAS, STATE = "open.cameras", "open.state"
CHANNELS = 3


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_AnyNamed = TypeVar("_AnyNamed", bound=_Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The configuration's mapping from the policy's names to the robot's. state: one name, or several to join."""

    cameras: Mapping[str, str]
    state: Mapping[str, str | list[str]]

    @classmethod
    def of(cls, config: ServiceConfig) -> Names:
        return cls(cameras=config.cameras, state=config.state)


def matched(request: OpenRequest, inputs: PolicyInputs, names: Names) -> OpenRequest:
    """The request with the policy's cameras and numbers; a RequestError says what is needed and what came."""
    cameras = _Cameras(inputs.cameras, request.cameras, names.cameras)
    state = _State(inputs.state, request.state, names.state)
    return replace(request, policy_cameras=cameras.matched(), policy_numbers=state.matched())


def narrowed(request: OpenRequest, numbers: Sequence[float]) -> tuple[OpenRequest, list[float]]:
    """A matched request with no more state than the policy gets, not matched any more, and its numbers of a frame."""
    taken = set(request.policy_numbers)
    state: list[StateSpec] = []
    kept: list[float] = []
    begin = 0
    for vector in request.state:
        end = begin + vector.size
        if taken.intersection(range(begin, end)):
            state.append(vector)
            kept += numbers[begin:end]
        begin = end
    return replace(request, state=tuple(state), policy_cameras=(), policy_numbers=()), kept


def short(name: str) -> str:
    """A name without the prefix of the field's keys: `top` of `observation.images.top`."""
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def _equal(name: str, sent: Sequence[_AnyNamed]) -> _AnyNamed | None:
    """The one of this name; else the only one whose last part is the same."""
    exact = next((each for each in sent if each.name == name), None)
    alike = [each for each in sent if short(each.name) == short(name)]
    return exact or (alike[0] if len(alike) == 1 else None)


def _refuse_unknown(key: str, configured: Collection[str], needed: Sequence[str]) -> None:
    """Refuse a mapping of something that the policy does not have."""
    unknown = [name for name in configured if name not in needed]
    if unknown:
        raise FailedPrecondition(
            f"the service's configuration maps {list_text(unknown)} in {key!r}, which this policy does not have; "
            f"its names are {list_text(needed)}",
            field=f"open.{key}",
            reason=Reason.INPUT_MAPPING,
        )


class _Cameras:
    """The policy's cameras among the robot's."""

    def __init__(
        self, needs: Sequence[CameraNeed], sent: tuple[CameraSpec, ...], configured: Mapping[str, str]
    ) -> None:
        self._needs = needs
        self._sent = sent
        self._configured = configured

    def matched(self) -> tuple[CameraSpec, ...]:
        _refuse_unknown("cameras", self._configured, [need.name for need in self._needs])
        found = tuple(self._camera(need) for need in self._needs)
        size = sum(camera.width * camera.height for camera in found) * CHANNELS
        if size > MAX_PAYLOAD_BYTES:
            raise InvalidArgument(
                f"the policy's cameras have {size} bytes of pixels together; the limit is {MAX_PAYLOAD_BYTES}: "
                "send smaller images",
                field=CAMERAS,
                reason=Reason.CAMERA_SIZE,
            )
        return found

    def _camera(self, need: CameraNeed) -> CameraSpec:
        camera = self._find(need)
        if camera is None:
            raise self._refusal(f"no camera is the policy's {need.name!r}", Reason.INPUT_MISSING, self._hint(need))
        if (need.width or camera.width, need.height or camera.height) != (camera.width, camera.height):
            text = f"camera {camera.name!r} is {camera.width}x{camera.height}; the policy takes {need_text(need)}"
            raise self._refusal(text, Reason.INPUT_SIZE)
        return camera

    def _find(self, need: CameraNeed) -> CameraSpec | None:
        if need.name in self._configured:
            name = self._configured[need.name]
            return next((camera for camera in self._sent if camera.name == name), None)
        found = _equal(need.name, self._sent)
        if found is None and not need.named and self._sent:
            return self._sent[0]
        return found

    def _hint(self, need: CameraNeed) -> str:
        """The configuration that would map one of the robot's spare cameras."""
        taken = {found.name for each in self._needs if each is not need and (found := self._find(each))}
        spare = next((camera.name for camera in self._sent if camera.name not in taken), None)
        if spare is None:
            return ""
        return f"; if {spare!r} is it, configure {_line('cameras', {**self._configured, need.name: spare})}"

    def _refusal(self, text: str, reason: Reason, hint: str = "") -> InvalidArgument:
        sides = joined(map(need_text, self._needs)), joined(map(camera_text, self._sent))
        return InvalidArgument(_sides_text(text, *sides, hint), field=CAMERAS, reason=reason)


class _State:
    """The policy's state among the robot's, as indexes into the numbers of a frame."""

    def __init__(
        self, needs: Sequence[StateSpec], sent: tuple[StateSpec, ...], configured: Mapping[str, str | list[str]]
    ) -> None:
        self._needs = needs
        self._sent = sent
        self._configured = configured
        starts = accumulate((each.size for each in sent), initial=0)
        self._numbers = {id(each): range(start, start + each.size) for each, start in zip(sent, starts, strict=False)}

    def matched(self) -> tuple[int, ...]:
        _refuse_unknown("state", self._configured, [need.name for need in self._needs])
        vectors = chain.from_iterable(self._vectors(need) for need in self._needs)
        return tuple(chain.from_iterable(self._numbers[id(vector)] for vector in vectors))

    def _vectors(self, need: StateSpec) -> list[StateSpec]:
        """The robot's vectors that make up the one that is needed."""
        if need.name in self._configured:
            vectors = self._as_configured(need)
        elif (equal := _equal(need.name, self._sent)) is not None:
            vectors = [equal]
        else:
            vectors = self._scalars(need)
        self._check(need, vectors)
        return vectors

    def _as_configured(self, need: StateSpec) -> list[StateSpec]:
        given = self._configured[need.name]
        by_name = {each.name: each for each in reversed(self._sent)}
        names = [given] if isinstance(given, str) else given
        missing = [name for name in names if name not in by_name]
        if missing:
            text = f"no state is {list_text(missing)}, configured as the policy's {need.name!r}"
            raise self._refusal(text, Reason.INPUT_MISSING)
        return [by_name[name] for name in names]

    def _scalars(self, need: StateSpec) -> list[StateSpec]:
        """Single numbers that have the names of the vector's elements."""
        single = [each for each in self._sent if each.size == 1 and each.name in need.elements]
        names = tuple(each.name for each in single)
        if names and names != need.elements and sorted(names) == sorted(need.elements):
            text = f"the policy's {need.name!r} has its elements in another order: {list_text(need.elements)}"
            raise self._refusal(text, Reason.INPUT_ORDER)
        if not names or names != need.elements:
            raise self._refusal(f"no state is the policy's {need.name!r}", Reason.INPUT_MISSING, self._hint(need))
        return single

    def _check(self, need: StateSpec, vectors: list[StateSpec]) -> None:
        """Compare sizes, and elements and units where both sides state them."""
        size = sum(each.size for each in vectors)
        if size != need.size:
            text = f"{list_text(each.name for each in vectors)} has {size} numbers; the policy takes {need.size}"
            raise self._refusal(text, Reason.INPUT_SIZE)
        for kind, reason in (("elements", Reason.INPUT_ORDER), ("units", Reason.INPUT_UNIT)):
            sent = chain.from_iterable(getattr(each, kind) or [""] * each.size for each in vectors)
            for index, (wanted, given) in enumerate(zip(getattr(need, kind), sent, strict=False)):
                if wanted and given and wanted != given:
                    text = f"number {index} of the policy's {need.name!r} is {wanted!r}, and {given!r} came"
                    raise self._refusal(text, reason)

    def _hint(self, need: StateSpec) -> str:
        """The configuration that would map a vector of the same size, or all single numbers if they are as many."""
        single = [each.name for each in self._sent if each.size == 1]
        whole = next((each.name for each in self._sent if each.size == need.size), None)
        found = whole or (single if len(single) == need.size else None)
        if found is None:
            return ""
        return f"; if {found!r} is it, configure {_line('state', {**self._configured, need.name: found})}"

    def _refusal(self, text: str, reason: Reason, hint: str = "") -> InvalidArgument:
        sides = joined(map(state_text, self._needs)), joined(map(state_text, self._sent))
        return InvalidArgument(_sides_text(text, *sides, hint), field=STATE, reason=reason)


def _line(key: str, mapping: Mapping[str, object]) -> str:
    return f'"{key}": {json.dumps(mapping)}'


def _sides_text(text: str, needed: str, sent: str, hint: str) -> str:
    return f"{text}: the policy needs {needed}; the robot sends {sent}{hint}"
