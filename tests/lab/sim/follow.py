"""A gymnasium environment for tests: whoever answers with its position, row for row, succeeds."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

ENV = "tests/Follow-v0"
RIGHT = 12  # actions in a row
LIMIT = 40  # steps of an episode


class Follow(gymnasium.Env[Any, Any]):
    """The position grows by 1 per step; an action is right if it is the position before the step.

    tolerance: how far off it may be. Other parts of the observation are there to be mapped.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Dict()
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, tolerance: float = 1e-3, render_mode: str | None = None) -> None:
        self.tolerance, self.render_mode = tolerance, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.row, self.actions = float(self.np_random.integers(100)), 0, list[float]()
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = abs(action[0] - self.position) <= self.tolerance
        self.row = self.row + 1 if right else 0
        self.actions.append(float(action[0]))
        self.position += 1.0
        return self._seen(), float(right), False, False, {"task": {"done": self.row >= RIGHT}}

    def render(self) -> np.ndarray | None:
        return self._picture(32) if self.render_mode else None

    def _seen(self) -> dict[str, Any]:
        arm = {"position": np.array([self.position]), "parts": np.array([1.0, 2.0, self.position])}
        return {"pixels": {"top": self._picture(8)}, "arm": arm, "text": "none"}

    def _picture(self, size: int) -> np.ndarray:
        """Its first pixel is its place in the upper left corner."""
        picture = np.zeros((size, size, 3), np.uint8)
        picture[0, 0] = 255
        return picture


gymnasium.register(ENV, entry_point=Follow, max_episode_steps=LIMIT)
