"""The robot's tasks, and the conditions under which they succeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from edgeflow.lab.demo.world.layout import Handle
from edgeflow_client.pose import Pose, relative, to_rotvec

PHRASES: Final = (
    "grasp the {} handle",
    "pick up the {} handle",
    "grab the {} handle",
    "take hold of the {} handle",
    "reach for the {} handle and close the gripper",
)
REACH: Final = 0.015  # metres; a grasp is closing this near the grasp pose ...
ALIGNED: Final = np.deg2rad(15.0)  # ... and this well aligned
WRONG_REACH: Final = 0.03  # metres; closing this near another handle ends the episode
TIME_LIMIT: Final = 8.0  # seconds


class EpisodeOutcome(str, Enum):
    """The state of an episode."""

    RUNNING = "running"
    SUCCESS = "success"
    WRONG_TARGET = "wrong_target"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Task:
    """The task of an episode."""

    target: int
    """Index into the episode's handles."""
    instruction: str
    """The text that the policy reads."""


def names_of(handles: Sequence[Handle], index: int) -> tuple[str, ...]:
    """The words that identify this handle: its colour, and its position if it is at an end of the row."""
    places = {0: ("leftmost",), len(handles) - 1: ("rightmost",)}
    return (handles[index].colour, *places.get(index, ()))


def sample_task(rng: np.random.Generator, handles: Sequence[Handle]) -> Task:
    """A random handle, with one of its names and one of the phrases."""
    target = int(rng.integers(len(handles)))
    names = names_of(handles, target)
    phrase = PHRASES[int(rng.integers(len(PHRASES)))]
    return Task(target, phrase.format(names[int(rng.integers(len(names)))]))


def distances(tool: Pose, grasp: Pose) -> tuple[float, float]:
    """Distance in metres and angle in radians between the tool and a grasp pose."""
    left = relative(tool, grasp)
    return float(np.linalg.norm(left.position)), float(np.linalg.norm(to_rotvec(left.wxyz)))


def judge_closing(tool: Pose, grasps: Sequence[Pose], target: int) -> EpisodeOutcome:
    """The outcome of closing the gripper here. The episode continues if it closes on nothing."""
    far, turned = distances(tool, grasps[target])
    if far <= REACH and turned <= ALIGNED:
        return EpisodeOutcome.SUCCESS
    others = [grasp for index, grasp in enumerate(grasps) if index != target]
    if any(distances(tool, grasp)[0] <= WRONG_REACH for grasp in others):
        return EpisodeOutcome.WRONG_TARGET
    return EpisodeOutcome.RUNNING
