"""The robot's state as the chat model reads it: a report of one line in a fixed format.

Lengths are whole centimetres in the robot's frame (x forward, y to its left, z up); d is an object's distance from the
arm. Every number has a fixed width, so that the position of a digit gives its power of ten.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import dist
from typing import Final

TITLE: Final = "Robot state"
COLOURS: Final = ("red", "green", "blue", "orange", "purple", "yellow", "white", "black")
SHAPES: Final = ("cube", "ball", "plate", "cup", "box", "ring")
MODES: Final = ("serial", "pipelined", "depth", "auto")
FAULTS: Final = ("joint limit", "camera lost", "motor hot", "link lost", "gripper jam", "worker lost")
VERBS: Final = ("reach", "grasp", "push", "lift", "watch")
MAX_OBJECTS: Final = 4
OPTIONAL_ITEMS: Final = ("faults", "task", "age", "mode")

Point = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SceneObject:
    """An object, named by colour and shape."""

    colour: str
    shape: str
    place: Point
    """X, y, z in cm."""
    distance: int
    """Distance from the arm, cm."""

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotState:
    """A state of the robot."""

    pose: Point
    """X, y, z of the arm, cm."""
    gripper: str
    holding: str
    things: tuple[SceneObject, ...]
    task: str
    mode: str
    fps: int
    age_ms: int
    """Age of the last action."""
    fault: str
    """The fault. `holding`, `task`, `fault`: "" for none."""
    silent: frozenset[str] = frozenset()
    """Items that the report omits."""

    def report(self) -> str:
        """The report as one line for the prompt."""
        things = (f"{each.name} {place_text(each.place)} d{each.distance:02d}" for each in self.things)
        items = {
            "arm": f"arm {place_text(self.pose)}",
            "gripper": f"gripper {self.gripper}",
            "holding": f"holding {self.holding or 'nothing'}",
            "objects": "; ".join([f"objects {len(self.things)}", *things]),
            "task": f"task {self.task or 'none'}",
            "mode": f"mode {self.mode}",
            "fps": f"fps {self.fps:02d}",
            "age": f"age {self.age_ms:03d} ms",
            "faults": f"faults {self.fault or 'none'}",
        }
        return f"{TITLE}: " + "; ".join(item for name, item in items.items() if name not in self.silent)


def place_text(place: Point) -> str:
    """A position as text, such as "x+12 y-03 z07"."""
    x, y, z = place
    return f"x{x:+03d} y{y:+03d} z{z:02d}"


def held_out_number(value: int) -> bool:
    """True for the absolute values that no training state contains: every tenth, spread over all digits."""
    return (abs(value) * 37 + abs(value) // 10 * 3) % 10 == 1


class StateSource:
    """Generates states.

    held_out: False for training; True mixes in the values that training never shows.

    near_misses: share of questions about an object of which usually only the colour exists.
    """

    def __init__(self, rng: random.Random, *, held_out: bool, near_misses: float = 0.0) -> None:
        self.rng = rng
        self.near_misses = near_misses
        self._held_out = held_out

    def draw(self, most: int = MAX_OBJECTS) -> RobotState:
        """Generate a state with at most `most` objects."""
        rng = self.rng
        pose = (self.number(-25, 25), self.number(-25, 25), self.number(5, 30))
        things = self._things(pose, rng.randint(0 if rng.random() < 0.15 else 1, most))
        held = rng.choice(things).name if things and rng.random() < 0.35 else ""
        task = f"{rng.choice(VERBS)} the {rng.choice(things).name}" if things and rng.random() < 0.85 else ""
        state = RobotState(
            pose=pose,
            gripper="closed" if held else rng.choice(("open", "closed")),
            holding=held,
            things=things,
            task=task,
            mode=rng.choice(MODES),
            fps=self.number(2, 60),
            age_ms=self.number(10, 999),
            fault=rng.choice(FAULTS) if rng.random() < 0.5 else "",
        )
        if rng.random() >= 0.15:
            return state
        return replace(state, silent=frozenset(rng.sample(OPTIONAL_ITEMS, rng.randint(1, 2))))

    def _things(self, pose: Point, count: int) -> tuple[SceneObject, ...]:
        """Generate objects of distinct colours; sometimes of only two shapes, so that only the colour identifies
        them.
        """
        shapes = self.rng.sample(SHAPES, 2) if self.rng.random() < 0.4 else SHAPES
        colours = self.rng.sample(COLOURS, count)
        return tuple(self._thing(colour, self.rng.choice(shapes), pose) for colour in colours)

    def _thing(self, colour: str, shape: str, pose: Point) -> SceneObject:
        while True:
            height = self.number(0, 30) if self.rng.random() < 0.7 else 2
            place = (self.number(-35, 35), self.number(-35, 35), height)
            distance = round(dist(place, pose))
            if distance < 100 and (self._held_out or not held_out_number(distance)):
                return SceneObject(colour, shape, place, distance)

    def number(self, low: int, high: int) -> int:
        """Generate a number: never a held-out one for training, every second time one for held-out states."""
        wanted = self._held_out and self.rng.random() < 0.5
        while True:
            value = self.rng.randint(low, high)
            if held_out_number(value) == wanted:
                return value
