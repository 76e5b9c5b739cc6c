"""The policy's cameras and state vectors among those of a robot, found by name. Pure.

The configuration's names win; then equal names. A camera that the checkpoint does not name is the robot's first. What
the policy does not need is ignored. The field's keys stand for their last part: `observation.images.top` is `top`,
`observation.state` is `state`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TypeVar

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CHANNELS, CameraNeed, PolicyInputs
from edgeflow.ipc.framing import MAX_PAYLOAD_BYTES
from edgeflow_client.errors import ConfigError, InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, StateSpec

MOST_CHARACTERS = 400  # of a list: error texts travel in trailers, which have a limit
PREFIXES = ("observation.images.", "observation.", "observation/")
Mapped = TypeVar("Mapped")
CAMERAS, STATE = "open.cameras", "open.state"


def list_text(names: Iterable[str]) -> str:
    """Names in quotes, separated by commas; "none" if there are none."""
    return joined(repr(name) for name in names)


def joined(parts: Iterable[str]) -> str:
    """Parts separated by commas, shortened if they are too long; "none" if there are none."""
    text = ", ".join(parts) or "none"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"


def need_text(need: CameraNeed) -> str:
    """A camera that a policy needs: its name and size."""
    size = f"{need.width or 'any'}x{need.height or 'any'}" if need.width or need.height else "of any size"
    return f"{need.name!r} {size}"


def state_text(state: StateSpec) -> str:
    """A state vector: its name and size, and its elements with their units if stated."""
    names = state.elements or ("",) * state.size
    units = state.units or ("",) * state.size
    parts = [" ".join(filter(None, pair)) for pair in zip(names, units, strict=True)]
    listed = f" ({joined(parts)})" if any(parts) else ""
    return f"{state.name!r} of {state.size} number{'s' * (state.size != 1)}{listed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The configuration's mapping from the policy's names to the robot's."""

    cameras: Mapping[str, str]
    state: Mapping[str, str | list[str]]
    """One name, or several whose vectors are joined."""
    section: str = ""
    """The section of the configuration that errors suggest to change."""

    @classmethod
    def of(cls, config: ServiceConfig, inputs: PolicyInputs, front: str = "") -> Names:
        """The names that apply at a front end, with the policy's own names as keys; ConfigError as in `of_policy`."""
        names = cls(cameras=config.cameras, state=config.state).of_policy(inputs)
        if front:
            dialect = config.frontends.dialects[front]
            own = cls(cameras=dialect.cameras, state=dialect.state, section=f"frontends.{front}.").of_policy(inputs)
            cameras, state = {**names.cameras, **own.cameras}, {**names.state, **own.state}
            names = cls(cameras=cameras, state=state, section=own.section)
        return names

    def of_policy(self, inputs: PolicyInputs) -> Names:
        """The mapping with the policy's own names as keys; ConfigError for what it does not have, or has twice."""
        section = self.section
        cameras = _resolved(f"{section}cameras", self.cameras, [need.name for need in inputs.cameras])
        for name, camera in cameras.items():
            twice = [other for other, mapped in cameras.items() if mapped == camera and other != name]
            if twice:
                raise ConfigError(
                    f"{section}cameras: {camera!r} is mapped to {name!r} and {twice[0]!r}; give each its own camera"
                )
        state = _resolved(f"{section}state", self.state, [need.name for need in inputs.state])
        return Names(cameras=cameras, state=state, section=section)


def short(name: str) -> str:
    """A name without the prefix of the field's keys: `top` of `observation.images.top`."""
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def place_of(name: str, names: Sequence[str]) -> int | None:
    """The index of this name, the first of equal ones; otherwise of the only name with the same last part."""
    if name in names:
        return names.index(name)
    alike = [place for place, each in enumerate(names) if short(each) == short(name)]
    return alike[0] if len(alike) == 1 else None


def _resolved(key: str, configured: Mapping[str, Mapped], needed: Sequence[str]) -> dict[str, Mapped]:
    found: dict[str, Mapped] = {}
    for name, mapped in configured.items():
        place = place_of(name, needed)
        if place is None:
            raise ConfigError(f"{key}: the policy has no {name!r}; its names are {list_text(needed)}")
        if needed[place] in found:
            raise ConfigError(f"{key}: {needed[place]!r} is mapped twice; remove {name!r}")
        found[needed[place]] = mapped
    return found


def find_inputs(
    cameras: tuple[CameraSpec, ...], state: tuple[StateSpec, ...], inputs: PolicyInputs, names: Names
) -> tuple[tuple[CameraSpec, ...], tuple[int, ...]]:
    """The policy's cameras among the robot's, and the indexes of its numbers in those of all of the robot's vectors.

    Both in the policy's order. A RequestError names what is needed and what was sent. ConfigError where the names are
    not the policy's, which the service checks when its worker is ready.
    """
    names = names.of_policy(inputs)
    return _Cameras(inputs.cameras, cameras, names).matched(), _State(inputs.state, state, names).matched()


def shrunk(camera: CameraSpec, need: CameraNeed) -> CameraSpec:
    """The camera with the size to which its robot shrinks images, in proportion: the size that the policy takes, or the
    smallest one that has all the pixels that it computes with. Images are never enlarged.
    """
    short = min(camera.width, camera.height)
    width, height = need.width, need.height
    if not (width or height) and 0 < need.side < short:
        width, height = (round(length * need.side / short) for length in (camera.width, camera.height))
    elif width * camera.height != height * camera.width or not 0 < width < camera.width:
        return camera
    return replace(camera, width=width, height=height)


class _Cameras:
    """The policy's cameras among the robot's."""

    def __init__(self, needs: Sequence[CameraNeed], sent: tuple[CameraSpec, ...], names: Names) -> None:
        self._needs = needs
        self._sent = sent
        self._names = [camera.name for camera in sent]
        self._configured = names.cameras
        self._key = f"{names.section}cameras"

    def matched(self) -> tuple[CameraSpec, ...]:
        found = tuple(self._camera(need) for need in self._needs)
        self._reject_twice(found)
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
            configured = self._configured.get(need.name)
            text = f"no camera is {configured!r}, configured as" if configured else "no camera is"
            text = f"{text} the policy's {need.name!r}" if self._sent else "no image came"
            raise self._rejection(text, Reason.INPUT_MISSING, self._hint(need))
        if camera.resize:
            camera = shrunk(camera, need)
        if (need.width or camera.width, need.height or camera.height) != (camera.width, camera.height):
            text = f"camera {camera.name!r} is {camera.width}x{camera.height}; the policy takes {need_text(need)}"
            raise self._rejection(text, Reason.INPUT_SIZE)
        return camera

    def _find(self, need: CameraNeed) -> CameraSpec | None:
        configured = self._configured.get(need.name)
        if configured is None and not need.named:
            return self._sent[0] if self._sent else None
        place = place_of(configured or need.name, self._names)
        return None if place is None else self._sent[place]

    def _reject_twice(self, found: Sequence[CameraSpec]) -> None:
        """Reject one camera for two of the policy's, which a configured and an equal name can cause."""
        for need, camera in zip(self._needs, found, strict=True):
            if (first := self._needs[found.index(camera)]) is not need:
                text = f"camera {camera.name!r} would be the policy's {first.name!r} and its {need.name!r}"
                raise self._rejection(text, Reason.INPUT_MAPPING)

    def _hint(self, need: CameraNeed) -> str:
        """The configuration that would map one of the robot's spare cameras."""
        taken = {found.name for each in self._needs if each is not need and (found := self._find(each))}
        spare = next((name for name in self._names if name not in taken), None)
        return "" if spare is None else _hint_text(self._key, {**self._configured, need.name: spare}, spare)

    def _rejection(self, text: str, reason: Reason, hint: str = "") -> InvalidArgument:
        needed, sent = map(need_text, self._needs), (f"{each.name!r} {each.width}x{each.height}" for each in self._sent)
        return InvalidArgument(sides_text(text, joined(needed), joined(sent), hint), field=CAMERAS, reason=reason)


class _State:
    """The policy's state among the robot's, as indexes into the numbers of a frame.

    Vectors of the robot are known by their places: those of an older client may have equal names.
    """

    def __init__(self, needs: Sequence[StateSpec], sent: tuple[StateSpec, ...], names: Names) -> None:
        self._needs = needs
        self._sent = sent
        self._names = [each.name for each in sent]
        self._configured = names.state
        self._key = f"{names.section}state"
        self._starts = list(accumulate((each.size for each in sent), initial=0))

    def matched(self) -> tuple[int, ...]:
        places = chain.from_iterable(self._places(need) for need in self._needs)
        return tuple(chain.from_iterable(range(self._starts[place], self._starts[place + 1]) for place in places))

    def _places(self, need: StateSpec) -> list[int]:
        """The robot's vectors that make up the one that is needed."""
        if need.name in self._configured:
            places = self._as_configured(need)
        elif (equal := place_of(need.name, self._names)) is not None:
            places = [equal]
        else:
            places = self._scalars(need)
        self._check(need, [self._sent[place] for place in places])
        return places

    def _as_configured(self, need: StateSpec) -> list[int]:
        given = self._configured[need.name]
        names = [given] if isinstance(given, str) else given
        places = [place_of(name, self._names) for name in names]
        missing = [name for name, place in zip(names, places, strict=True) if place is None]
        if missing:
            text = f"no state is {list_text(missing)}, configured as the policy's {need.name!r}"
            raise self._rejection(text, Reason.INPUT_MISSING)
        return [place for place in places if place is not None]

    def _scalars(self, need: StateSpec) -> list[int]:
        """Single numbers that have the names of the vector's elements."""
        single = [place for place, each in enumerate(self._sent) if each.size == 1 and each.name in need.elements]
        names = tuple(self._names[place] for place in single)
        if names and names != need.elements and sorted(names) == sorted(need.elements):
            text = f"the policy's {need.name!r} has its elements in another order: {list_text(need.elements)}"
            raise self._rejection(text, Reason.INPUT_ORDER)
        if not names or names != need.elements:
            raise self._rejection(f"no state is the policy's {need.name!r}", Reason.INPUT_MISSING, self._hint(need))
        return single

    def _check(self, need: StateSpec, vectors: list[StateSpec]) -> None:
        """Compare sizes, and elements and units where both sides state them."""
        size = sum(each.size for each in vectors)
        if size != need.size:
            text = f"{list_text(each.name for each in vectors)} has {size} numbers; the policy takes {need.size}"
            raise self._rejection(text, Reason.INPUT_SIZE)
        for kind, reason in (("elements", Reason.INPUT_ORDER), ("units", Reason.INPUT_UNIT)):
            sent = chain.from_iterable(getattr(each, kind) or [""] * each.size for each in vectors)
            for index, (wanted, given) in enumerate(zip(getattr(need, kind), sent, strict=False)):
                if wanted and given and wanted != given:
                    text = f"number {index} of the policy's {need.name!r} is {wanted!r}, and {given!r} came"
                    raise self._rejection(text, reason)

    def _hint(self, need: StateSpec) -> str:
        """The configuration that would map a vector of the same size, or all single numbers if they are as many."""
        single = [each.name for each in self._sent if each.size == 1]
        whole = next((each.name for each in self._sent if each.size == need.size), None)
        found = whole or (single if len(single) == need.size else None)
        return "" if found is None else _hint_text(self._key, {**self._configured, need.name: found}, found)

    def _rejection(self, text: str, reason: Reason, hint: str = "") -> InvalidArgument:
        sides = joined(map(state_text, self._needs)), joined(map(state_text, self._sent))
        return InvalidArgument(sides_text(text, *sides, hint), field=STATE, reason=reason)


def _hint_text(key: str, mapping: Mapping[str, object], found: str | list[str]) -> str:
    """The line to configure; "" if it is too long for an error."""
    value: Mapping[str, object] = mapping
    *sections, last = key.split(".")
    for section in reversed((*sections[1:], last)):
        value = {section: value}
    first = sections[0] if sections else last
    line = f'"{first}": {json.dumps(value if sections else mapping, ensure_ascii=False)}'
    return f"; if {found!r} is it, configure {line}" if len(line) <= MOST_CHARACTERS else ""


def sides_text(text: str, needed: str, sent: str, hint: str = "") -> str:
    """An error about inputs, with those of both sides."""
    return f"{text}: the policy needs {needed}; the robot sends {sent}{hint}"
