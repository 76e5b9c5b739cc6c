"""A policy of any shape for tests, as a plug-in: its answers follow from what it sees, or are looked up in a table.

A checkpoint is config.json, as `tests.stub_policy.stub_checkpoint` writes it, and model.safetensors with the table: by
the SHA-256 of the first camera's RGB bytes, an answer [horizon, dims].
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeflow.contract import PROMPT, CameraNeed, Observation, ObservationWindow, PolicyInputs, Stage, StageProgram
from edgeflow.policies.family import ONE_PASS_MODES, Family
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.types import ActionSchema, StateSpec

NAN, BEYOND, REFUSE, HANG, DIE, RAISE = "answer NaN", "answer beyond the limits", "refuse", "hang", "die", "raise"
"""Instructions that the stub obeys; any other one is an instruction like those of robots."""


def answer(images: Mapping[str, Any], state: Mapping[str, Sequence[float]], horizon: int, dims: int) -> np.ndarray:
    """[horizon, dims] float64 without a table: numbers that change with every byte of an image and number of the state.

    images: arrays [height, width, 3] of bytes, or their bytes, by camera, and state: vectors by name, both in the order
    of the checkpoint. Number d of row i is i plus one of these, in turn: per camera the CRC-32 of its bytes, as a share
    of 2**32, then per vector the sum of its numbers in float32, in which a frame carries them. It is i without both.
    """
    vectors = [np.asarray(each, np.float32).tolist() for each in state.values()]
    seen = [zlib.crc32(each) / 2**32 for each in images.values()] + [math.fsum(each) for each in vectors] or [0.0]
    return np.arange(horizon)[:, None] + np.array([seen[index % len(seen)] for index in range(dims)])


class StubPolicy:
    fixed_rows = 1
    rtc = None
    unusual_states = 0
    passes = 0

    def __init__(self, config: dict[str, Any], table: Mapping[str, np.ndarray], dtype: Any, device: Any) -> None:
        self.config, self.table, self.dtype, self.device = config, table, dtype, device
        self.unnorm_keys = tuple(config["unnorm_keys"])
        self.inputs = PolicyInputs(
            cameras=tuple(CameraNeed(**each) for each in config["cameras"]),
            state=tuple(StateSpec(**{**each, "elements": tuple(each.get("elements", ()))}) for each in config["state"]),
            history=config["history"],
        )

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        return StageProgram((Stage(rows=PROMPT),))

    def text_rows(self, instruction: str, state: Mapping[str, Sequence[float]] | None = None) -> int:
        return 0

    def prepare(self, observation: Observation) -> tuple[str, np.ndarray]:
        """The instruction and the answer."""
        instruction, horizon, dims = observation.instruction, self.config["horizon"], len(self.config["actions"])
        if instruction == REFUSE:
            raise InvalidArgument("the stub refuses this frame, as its instruction says", field="frame.instruction")
        if not self.config["looks"]:
            return instruction, answer({}, {}, horizon, dims)
        images = {each.name: observation.images[each.name].data for each in self.inputs.cameras}
        state = {each.name: observation.state[each.name] for each in self.inputs.state}
        if self.table and (key := hashlib.sha256(next(iter(images.values()))).hexdigest()) in self.table:
            return instruction, self.table[key]
        return instruction, answer(images, state, horizon, dims)

    def joined(self, window: ObservationWindow) -> tuple[str, np.ndarray]:
        """The newest instruction, and the sum of the answers to the observations by themselves."""
        return window.frames[-1][0], sum(values for _, values in window.frames)

    def prompt_tokens(self, frame: tuple[str, np.ndarray]) -> int:
        return 0

    def batch(self, frames: Sequence[tuple[str, np.ndarray]], tokens: int) -> list[Any]:
        """[B, horizon, dims] float64: what the frames' instructions leave of their answers."""
        import torch

        return [torch.from_numpy(np.stack([obeyed(self.config, *frame) for frame in frames]))]

    def run(self, batch: Sequence[Any], *, on_host: bool) -> Any:
        """The batch, after the time that a pass takes."""
        if pass_s := self._pass_s():  # even no time takes 60 us to sleep
            time.sleep(pass_s)
        return batch[0]

    def _pass_s(self) -> float:
        self.passes += 1
        turn, due = divmod(self.passes, self.config["late_every"] or math.inf)
        late_s = self.config["late_s"]
        return late_s[int(turn) % len(late_s)] if due == 0 else self.config["pass_s"]

    def actions(self, values: np.ndarray, unnorm_key: str | None = None) -> np.ndarray:
        return values

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        config, names = self.config, tuple(self.config["actions"])
        return ActionSchema(
            names=names,
            units=("1",) * len(names),
            low=(-math.inf if config["low"] is None else config["low"],) * len(names),
            high=(math.inf if config["high"] is None else config["high"],) * len(names),
            relative=(config["relative"],) * len(names),
            control_rate_hz=config["control_rate_hz"],
            horizon=config["horizon"],
            step_ms=config["step_ms"],
        )


def obeyed(config: Mapping[str, Any], instruction: str, values: np.ndarray) -> np.ndarray:
    """The answer to a frame, or what its instruction provokes instead."""
    if instruction == NAN:
        return np.full_like(values, math.nan)
    if instruction == BEYOND:
        return np.full_like(values, config["high"] + 1)
    if instruction == RAISE:
        raise KeyError("as the\ninstruction says")
    if instruction == HANG:
        threading.Event().wait()
    if instruction == DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    return values


class PublishedStub:
    def __init__(self, directory: Path) -> None:
        self.directory, self.config = directory, json.loads((directory / "config.json").read_text())
        self.unnorm_keys = tuple(self.config["unnorm_keys"])

    def footprint(self, dtype: Any) -> Any:
        from edgeflow.engine.policy import Footprint

        most = self.config["most_sessions"]
        return Footprint(decoder=0, other=0, slots=0, positions=0, row_bytes=0, frame_bytes=1 << 20, most_sessions=most)

    def load(self, placement: Any) -> StubPolicy:
        from safetensors.numpy import load_file

        time.sleep(self.config["load_s"])
        table = load_file(self.directory / "model.safetensors")
        return StubPolicy(self.config, table, placement.dtype, placement.device)


def _prepare(policy: Any, options: Any) -> Any:
    from edgeflow.engine.control.engine import one_pass_engine

    return one_pass_engine(policy, options)


STUB = Family(
    name="stub",
    modes=ONE_PASS_MODES,
    detect=lambda files: files.config.get("type") == "stub",
    check=lambda directory, settings: None,
    load=lambda directory, settings, options: PublishedStub(directory),
    prepare=_prepare,
)
