"""Texts about cameras and state vectors for refusals: what a policy needs, what a robot sends. Bounded in length."""

from __future__ import annotations

from collections.abc import Iterable

from edgeflow.contract import CameraNeed
from edgeflow_client.types import CameraSpec, StateSpec

MOST_CHARACTERS = 400  # of a list: texts travel in trailers, which have a limit


def list_text(names: Iterable[str]) -> str:
    """Names in quotes, separated by commas; "none" if there are none."""
    return joined(repr(name) for name in names)


def joined(parts: Iterable[str]) -> str:
    """Parts separated by commas, cut where they become too long; "none" if there are none."""
    text = ", ".join(parts) or "none"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"


def need_text(need: CameraNeed) -> str:
    """A camera that a policy needs: its name and size."""
    size = f"{need.width or 'any'}x{need.height or 'any'}" if need.width or need.height else "of any size"
    return f"{need.name!r} {size}"


def camera_text(camera: CameraSpec) -> str:
    """A camera that a robot sends: its name and size."""
    return f"{camera.name!r} {camera.width}x{camera.height}"


def state_text(state: StateSpec) -> str:
    """A state vector: its name and size, and its elements with their units where they are stated."""
    names = state.elements or ("",) * state.size
    units = state.units or ("",) * state.size
    parts = [" ".join(filter(None, pair)) for pair in zip(names, units, strict=True)]
    listed = f" ({joined(parts)})" if any(parts) else ""
    return f"{state.name!r} of {state.size} number{'s' * (state.size != 1)}{listed}"
