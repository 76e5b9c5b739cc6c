"""Made-up observations: of warm-up, calibration, recordings and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from edgeflow.contract import Image, Observation, PolicyInputs
from edgeflow.engine.policy import Policy

SIDE = 224
"""Pixels of each side of a camera whose size the policy leaves open."""


def sample_observations(inputs: PolicyInputs, count: int, instruction: str, side: int = SIDE) -> Iterator[Observation]:
    """Observations of noise, the same for the same count; state of zeros. Every other one has the longest delay."""
    generator = np.random.default_rng(0)
    for index in range(count):
        images = {}
        for camera in inputs.cameras:
            height, width = camera.height or side, camera.width or side
            pixels = generator.integers(0, 256, (height, width, 3), np.uint8)
            images[camera.name] = Image(height, width, pixels.tobytes())
        state = {vector.name: (0.0,) * vector.size for vector in inputs.state}
        delay_ms = inputs.most_delay_ms * (index % 2)
        yield Observation(images=images, state=state, instruction=instruction, delay_ms=delay_ms)


@contextmanager
def uncounted(policy: Policy) -> Iterator[None]:
    """Forget what the policy counts within the block, since its frames are made up."""
    counted = policy.unusual_states
    try:
        yield
    finally:
        policy.unusual_states = counted


def brightened(observations: Iterable[Observation]) -> Iterator[Observation]:
    """The observations with every pixel a level brighter, the brightest a level darker."""
    for observation in observations:
        images = {}
        for name, image in observation.images.items():
            pixels = np.frombuffer(image.data, np.uint8)
            images[name] = replace(image, data=np.where(pixels < 255, pixels + 1, 254).astype(np.uint8).tobytes())
        yield replace(observation, images=images)
