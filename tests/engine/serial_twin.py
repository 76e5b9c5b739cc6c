"""Serial decoding as the reference of other modes, where many tests of a module decode the same frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import DecodedFrame, decode_serially
from edgeflow.engine.policy import PreparedFrame
from edgeflow.policies.openvla.policy import OpenVLAPolicy


class SerialTwin:
    """Decodes a stream of frames serially with a new engine, and keeps the answers for the next test that asks.

    make: an engine from a policy and what else a test gives.
    """

    def __init__(self, make: Callable[..., PolicyEngine]) -> None:
        self._make = make
        self._kept: dict[tuple[Any, ...], tuple[OpenVLAPolicy, list[DecodedFrame]]] = {}

    def __call__(self, policy: OpenVLAPolicy, frames: Sequence[PreparedFrame], *given: Any) -> list[DecodedFrame]:
        content = tuple((each.prompt_ids, each.pixel_values.numpy().tobytes()) for each in frames)
        key = (id(policy), given, content)
        if key not in self._kept:
            self._kept[key] = policy, decode_serially(self._make(policy, *given), frames)
        return self._kept[key][1]
