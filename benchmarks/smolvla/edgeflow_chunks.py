"""This project's side of `benchmarks.smolvla`: the policy on the engine that serves it, one frame at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.smolvla.random_smolvla import CAMERAS, NUMBERS, STATE, TASK, TOKENS, statistics
from edgeflow.contract import Image, Observation
from edgeflow.engine.control.engine import EngineOptions, FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.engine.placement import operator_table
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.policies.flow.policy import DenoisingPolicy
from edgeflow.policies.smolvla.family import SMOLVLA
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode

CPU = torch.device("cpu")


class EdgeflowChunks:
    """The policy of a folder in a type, loaded. inputs: the file of `random_smolvla.write_inputs`."""

    def __init__(self, folder: Path, inputs: Path, dtype: str) -> None:
        kind = getattr(torch, dtype)
        table = operator_table(None, "float", CPU, kind)
        published = SMOLVLA.load(folder, {"control_rate_hz": 30.0}, LoadOptions())
        placement = Placement(dtype=kind, device=CPU, table=table)
        self._policy = cast("DenoisingPolicy", published.load(placement))
        options = EngineOptions(sessions=1, text_rows=TOKENS, table=table)
        self._engine = cast("FlowEngine", SMOLVLA.prepare(self._policy, options))
        self._tensors = load_file(inputs)
        self._vision_ms = 0.0
        embedding = self._policy.network.prefix  # type: ignore[attr-defined]
        self._policy.network.prefix = replace(embedding, images=self._timed(embedding.images))  # type: ignore[attr-defined]

    def chunk(self, cameras: int) -> dict[str, Any]:
        """The times of a chunk from the first cameras (Chunk in __main__.py), and `chunk` [H, 6] normalised."""
        observation = self._observation(cameras)
        run = OfflineRun(self._engine, Scheduler(limits_for(self._policy.sizes.program.passes)), [Mode.SERIAL])
        passes: list[float] = []
        self._vision_ms = 0.0
        started, used = time.perf_counter(), time.process_time()
        frame = self._frame(observation)
        images = time.perf_counter() - started
        run.offer(0, 1, frame)
        decoded: list[Any] = []
        while not decoded:
            began = time.perf_counter()
            ticket = run.step()
            assert ticket is not None
            decoded = run.collect(ticket)
            passes.append((time.perf_counter() - began) * 1e3)
        taken, used = (time.perf_counter() - started) * 1e3, (time.process_time() - used) * 1e3
        first, *steps = passes
        parts = {
            "images": images * 1e3,
            "vision": self._vision_ms,
            "prefix": first - self._vision_ms,
            "steps": taken - images * 1e3 - first,
        }
        chunk = decoded[0].sampled.values[0, :, :NUMBERS]
        return {"chunk_ms": taken, "cpu_ms": used, "parts_ms": parts, "step_ms": steps, "chunk": chunk}

    def _frame(self, observation: Observation) -> FlowFrame:
        """The policy's own frame, but for the noise, which both sides share."""
        return replace(self._policy.prepare(observation), noise=self._tensors["noise"])

    def _observation(self, cameras: int) -> Observation:
        """As a robot sends it: pixels, and a state before it is normalised."""
        images = {}
        for name in CAMERAS[:cameras]:
            pixels = self._tensors[name].permute(1, 2, 0).contiguous()
            images[f"observation.images.{name}"] = Image(*pixels.shape[:2], pixels.numpy().tobytes())
        rising = statistics()
        state = self._tensors["state"][0].double() * rising.double() + rising.double()
        return Observation(images=images, state={STATE: tuple(state.tolist())}, instruction=TASK)

    def _timed(self, images: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def timed(pixels: Tensor) -> Tensor:
            started = time.perf_counter()
            rows = images(pixels)
            self._vision_ms += (time.perf_counter() - started) * 1e3
            return rows

        return timed
