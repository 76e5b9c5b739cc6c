"""Policies that the tests of their quantisation share, and frames for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeflow.contract import Image, Observation
from edgeflow.lab.quantize.policies.frames import RecordedFrame
from edgeflow.lab.quantize.policies.served import FrameRows, ServedPolicy, action_rows, prefix_rows
from edgeflow.lab.quantize.policies.sources import PolicySource, open_policy
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY
from edgeflow.policies.registry import family_of
from tests import tiny_checkpoint
from tests.policies.flow import tiny
from tests.policies.flow.tiny_policies import observation
from tests.policies.flow.weights import Tiny

TEXTS = ("lift it", "put it down")
EMBEDDED = {"embedded openvla": EMBEDDED_POLICY, "embedded flow": EMBEDDED_FLOW_POLICY}
KINDS = ("openvla", *tiny.KINDS)


def checkpoint(kind: str, folder: Path) -> Path:
    """A small random policy of a family, or an embedded one."""
    if kind in EMBEDDED:
        return EMBEDDED[kind]
    if kind == "openvla":
        return tiny_checkpoint.write_checkpoint(folder, tiny_checkpoint.TinySize(hidden=64, mlp=96))
    return tiny.write_checkpoint(folder, Tiny(kind=kind, width=32, expert=24, inner=64))


def observations(kind: str, count: int, first: int = 0) -> list[Observation]:
    """Noise; instructions of two lengths, and of the tiny flow policies frames with one camera and with two."""
    if kind in tiny.KINDS:
        cameras = ((tiny.TOP,), (tiny.TOP, tiny.WRIST))
        return [
            observation(first + index, *cameras[index % 2], instruction=TEXTS[index // 2 % 2]) for index in range(count)
        ]
    return [_embedded(kind, first + index, TEXTS[index % 2]) for index in range(count)]


def _embedded(kind: str, seed: int, text: str) -> Observation:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (96, 96, 3), np.uint8).tobytes()
    camera = "observation.images.wrist" if "flow" in kind else "image"
    state = {"observation.state": tuple(generator.normal(size=7).tolist())} if "flow" in kind else {}
    return Observation(images={camera: Image(96, 96, pixels)}, instruction=text, state=state, stamp_ns=seed)


def recorded(kind: str, shown: int, held_out: int) -> list[RecordedFrame]:
    """Frames of two episodes."""
    seen = observations(kind, shown + held_out)
    return [
        RecordedFrame(episode=int(index >= shown), held_out=index >= shown, observation=each)
        for index, each in enumerate(seen)
    ]


def opened(kind: str, folder: Path, count: int) -> tuple[PolicySource, ServedPolicy, FrameRows]:
    """A policy, as it is served, and its rows for some frames."""
    directory = checkpoint(kind, folder)
    source = open_policy(directory)
    served = ServedPolicy(directory, family_of(directory), observations(kind, count))
    return source, served, (prefix_rows if source.actions is None else action_rows)(served)
