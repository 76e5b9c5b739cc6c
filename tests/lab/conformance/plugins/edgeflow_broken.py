"""Families that are the template's but for one fault each, named in config.json; "", history, delay and sessions are
none.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeflow_template.family import TEMPLATE, read_config

from edgeflow.policies.family import Family
from edgeflow.text.checkpoint_json import read_json


def load(directory: Path, settings: Any, options: Any) -> Any:
    import time

    import torch
    from edgeflow_template.policy import PublishedTemplate, TemplatePolicy

    fault = read_json(directory / "config.json")["fault"]

    class BrokenPolicy(TemplatePolicy):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.frames: list[Any] = []
            self.answered = 0
            if "history" in fault:
                self.inputs = replace(self.inputs, history=3)
            if "delay" in fault:
                self.inputs = replace(self.inputs, most_delay_ms=500.0)

        def prepare(self, observation: Any) -> Any:
            if fault == "takes anything":
                joints = (*observation.state.get("joints", ()), 0.0, 0.0)[:2]
                state = {"joints": tuple(0.0 if each != each else each for each in joints)}
                observation = replace(observation, state=state)
            image, joints = super().prepare(observation)
            if fault == "delay":
                joints = joints * (1 + observation.delay_ms / 1e3)
            return (torch.zeros_like(image) if fault == "ignored camera" else image), joints

        def prompt_tokens(self, frame: Any) -> int:
            return int(fault == "uncounted rows")

        def actions(self, values: Any, unnorm_key: Any = None) -> Any:
            return super().actions(values, unnorm_key) + (4.0 if fault == "beyond limits" else 0.0)

        def run(self, batch: Any, *, on_host: bool) -> Any:
            rows = super().run(batch, on_host=on_host)
            match fault:
                case "batch order":
                    return rows.flip(0)
                case "hidden state":
                    self.answered += 1
                    return rows * 0.999**self.answered
                case "wrong horizon":
                    return rows[:, 1:]
                case "NaN":
                    rows[:, -1, -1] = torch.nan
                case "seed":
                    return rows * torch.rand_like(rows)
                case "slow":
                    time.sleep(1.5 * self.config.horizon / self.config.rate_hz)
                case "memory growth":
                    self.frames.append(batch)
            return rows

        def joined(self, window: Any) -> Any:
            image, joints = window.frames[-1]
            if fault == "ignored history":
                return image, joints
            return image, torch.stack([each[1] for each in window.frames]).mean(0)

    class SessionedPolicy(BrokenPolicy):
        """The answers of a session grow smaller."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.seen: dict[int, int] = {}

        def begin(self, session: int) -> None:
            self.seen[session] = 0

        def end(self, session: int) -> None:
            del self.seen[session]

        def prepare(self, observation: Any) -> Any:
            image, joints = super().prepare(observation)
            told = next(iter(self.seen)) if fault == "mixed sessions" else observation.session
            self.seen[told] += 1
            return image, joints * 0.9 ** self.seen[told]

    class BrokenCheckpoint(PublishedTemplate):
        def footprint(self, dtype: Any) -> Any:
            found = replace(super().footprint(dtype), graphs="sessions" not in fault)
            return replace(found, other=1_000_000) if fault == "footprint" else found

        def load(self, placement: Any) -> Any:
            placed = replace(placement, dtype=torch.float32) if fault == "dtype" else placement
            found = super().load(placed)
            kind = SessionedPolicy if "sessions" in fault else BrokenPolicy
            return kind(self.config, found.network, placed)

    return BrokenCheckpoint(directory, read_config(directory))


BROKEN = Family(
    name="broken",
    modes=TEMPLATE.modes,
    detect=lambda files: files.config.get("type") == "broken",
    check=TEMPLATE.check,
    load=load,
)
