"""Questions about a state, each with its one correct answer.

A topic is a set of phrasings and a rule that finds the subject and the answer in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from edgeflow.lab.demo.chat.robot_state import COLOURS, MODES, SHAPES, RobotState, SceneObject, StateSource, place_text

NO_OBJECTS: Final = "There are no objects."


@dataclass(frozen=True, slots=True)
class FilledPhrasing:
    """The values for the braces of a phrasing, and the answer."""

    subject: str
    answer: str


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    phrasings: tuple[str, ...]
    find: Callable[[RobotState, StateSource], FilledPhrasing | None]
    """Returns None if the state allows no such question."""
    again: str = ""
    """Phrasings of a follow-up about another subject, if there are any."""


def _name(state: RobotState, source: StateSource) -> str:
    """A name, mostly that of an object in the state."""
    if state.things and source.rng.random() < 0.85:
        thing = source.rng.choice(state.things)
        if source.near_misses and source.rng.random() < source.near_misses:
            return f"{thing.colour} {source.rng.choice(SHAPES)}"
        return thing.name
    return f"{source.rng.choice(COLOURS)} {source.rng.choice(SHAPES)}"


def _thing(state: RobotState, name: str) -> SceneObject | None:
    return next((thing for thing in state.things if thing.name == name), None)


def _of_thing(text_of: Callable[[SceneObject], str]) -> Callable[[RobotState, StateSource], FilledPhrasing | None]:
    def find(state: RobotState, source: StateSource) -> FilledPhrasing | None:
        name = _name(state, source)
        thing = _thing(state, name)
        return FilledPhrasing(name, text_of(thing) if thing else f"There is no {name} in the state.")

    return find


def _side(thing: SceneObject) -> str:
    side = "left" if thing.place[1] > 0 else "right" if thing.place[1] < 0 else "middle"
    return f"The {thing.name} is at y{thing.place[1]:+03d}: {side}."


def _exists(state: RobotState, source: StateSource) -> FilledPhrasing:
    name = _name(state, source)
    thing = _thing(state, name)
    return FilledPhrasing(name, f"Yes, at {place_text(thing.place)}." if thing else f"No, there is no {name}.")


def _listed(things: Iterable[SceneObject]) -> str:
    return ", ".join(f"the {thing.name}" for thing in things)


def _list(state: RobotState, _: StateSource) -> FilledPhrasing:
    listed = _listed(state.things)
    return FilledPhrasing("", f"{listed[0].upper()}{listed[1:]}." if listed else NO_OBJECTS)


def _count(state: RobotState, _: StateSource) -> FilledPhrasing:
    count = len(state.things)
    return FilledPhrasing("", "There is 1 object." if count == 1 else f"There are {count or 'no'} objects.")


def _colour(state: RobotState, source: StateSource) -> FilledPhrasing | None:
    shape = source.rng.choice(state.things).shape if state.things and source.rng.random() < 0.9 else "ring"
    found = [thing.colour for thing in state.things if thing.shape == shape]
    if len(found) > 1:
        return None
    return FilledPhrasing(shape, f"The {shape} is {found[0]}." if found else f"There is no {shape} in the state.")


def _gripper_is(state: RobotState, source: StateSource) -> FilledPhrasing:
    asked = source.rng.choice(("open", "closed"))
    return FilledPhrasing(asked, f"{_yes(asked == state.gripper)}, the gripper is {state.gripper}.")


def _holding(state: RobotState) -> str:
    return f"it holds {'the ' + state.holding if state.holding else 'nothing'}."


def _holds(state: RobotState, source: StateSource) -> FilledPhrasing:
    name = state.holding if state.holding and source.rng.random() < 0.5 else _name(state, source)
    return FilledPhrasing(name, f"{_yes(name == state.holding)}, {_holding(state)}")


def _yes(right: bool) -> str:
    return "Yes" if right else "No"


def _item(
    item: str, text_of: Callable[[RobotState], str], subject: Callable[[StateSource], str] = lambda _: ""
) -> Callable[[RobotState, StateSource], FilledPhrasing]:
    """A topic that one item of the report answers; the item may be missing."""

    def find(state: RobotState, source: StateSource) -> FilledPhrasing:
        missing = f"The state does not give the {item}."
        return FilledPhrasing(subject(source), missing if item in state.silent else text_of(state))

    return find


def _is_value(item: str, values: tuple[str, ...], value: Callable[[RobotState], str]) -> Topic:
    def find(state: RobotState, source: StateSource) -> FilledPhrasing:
        asked = value(state) if source.rng.random() < 0.4 else source.rng.choice(values)
        answer = f"{_yes(asked == value(state))}, the {item} is {value(state)}."
        return FilledPhrasing(asked, f"The state does not give the {item}." if item in state.silent else answer)

    return Topic((f"Is the {item} {{}}?", f"Is {{}} the {item}?", f"Tell me if the {item} is {{}}."), find)


def _status(state: RobotState) -> str:
    held = state.holding or "nothing"
    faults = f"faults {state.fault or 'none'}"
    return f"Gripper {state.gripper}, holding {held}, {len(state.things)} objects, fps {state.fps:02d}, {faults}."


TOPICS: Final[dict[str, Topic]] = {
    "where": Topic(
        (
            "Where is the {}?",
            "What is the position of the {}?",
            "Give the position of the {}.",
            "Tell me where the {} is.",
            "What are the coordinates of the {}?",
        ),
        _of_thing(lambda thing: f"The {thing.name} is at {place_text(thing.place)}."),
        again="And the {}?",
    ),
    "distance": Topic(
        ("How far is the {}?", "How far away is the {}?", "What is the distance to the {}?", "Is the {} far away?"),
        _of_thing(lambda thing: f"The {thing.name} is {thing.distance:02d} cm away."),
        again="And the {}?",
    ),
    "height": Topic(
        ("How high is the {}?", "What is the height of the {}?", "Give the height of the {}."),
        _of_thing(lambda thing: f"The {thing.name} is at height {thing.place[2]:02d} cm."),
        again="And the {}?",
    ),
    "side": Topic(
        ("On which side is the {}?", "Is the {} on the left or on the right?", "Is the {} left or right?"),
        _of_thing(_side),
        again="And the {}?",
    ),
    "exists": Topic(("Do you see the {}?", "Is there any {}?", "Is the {} there?", "Can you see a {}?"), _exists),
    "list": Topic(("List the objects.", "What objects are there?", "What is on the table?", "What do you see?"), _list),
    "count": Topic(("How many objects are there?", "How many objects do you see?", "Count the objects."), _count),
    "colour": Topic(("What colour is the {}?", "Which colour has the {}?", "Tell me the colour of the {}."), _colour),
    "pose": Topic(
        (
            "Where is the arm?",
            "What is the pose?",
            "Where are you?",
            "Where is the robot?",
            "Give the pose of the arm.",
        ),
        lambda state, _: FilledPhrasing("", f"The arm is at {place_text(state.pose)}."),
    ),
    "arm height": Topic(
        ("How high is the arm?", "What is the height of the arm?"),
        lambda state, _: FilledPhrasing("", f"The arm is at height {state.pose[2]:02d} cm."),
    ),
    "gripper": Topic(
        ("How is the gripper?", "What is the state of the gripper?", "What does the gripper do?"),
        lambda state, _: FilledPhrasing("", f"The gripper is {state.gripper}."),
    ),
    "gripper is": Topic(("Is the gripper {}?", "Tell me if the gripper is {}."), _gripper_is),
    "holding": Topic(
        ("What do you hold?", "What is the robot holding?", "What is in the gripper?", "What are you holding?"),
        lambda state, _: FilledPhrasing("", _holding(state).capitalize()),
    ),
    "holding any": Topic(
        ("Are you holding anything?", "Is anything in the gripper?", "Does the robot hold something?"),
        lambda state, _: FilledPhrasing("", f"{_yes(bool(state.holding))}, {_holding(state)}"),
    ),
    "holds": Topic(("Do you hold the {}?", "Is the {} in the gripper?", "Is the robot holding the {}?"), _holds),
    "task": Topic(
        ("What is the task?", "What are you doing?", "What is the robot told to do?", "What is the goal?"),
        _item("task", lambda state: f"The task is to {state.task}." if state.task else "There is no task."),
    ),
    "mode": Topic(
        ("What is the mode?", "Which mode is on?", "In which mode are you?", "Tell me the mode."),
        _item("mode", lambda state: f"The mode is {state.mode}."),
    ),
    "mode is": _is_value("mode", MODES, lambda state: state.mode),
    "fps": Topic(
        ("What is the fps?", "How many frames a second?", "How fast are you?", "What is the frame rate?"),
        _item("fps", lambda state: f"The fps is {state.fps:02d}."),
    ),
    "age": Topic(
        ("What is the age?", "How old is the last action?", "What is the age of the last action?", "Tell me the age."),
        _item("age", lambda state: f"The age is {state.age_ms:03d} ms."),
    ),
    "faults": Topic(
        ("Are there faults?", "Is anything wrong?", "What faults are there?", "Is there a fault?", "Any faults?"),
        _item("faults", lambda state: f"Yes: {state.fault}." if state.fault else "No faults."),
    ),
    "repeat": Topic(
        ("Repeat the state.", "Repeat the robot state.", "Show me the state.", "Read the state to me."),
        lambda state, _: FilledPhrasing("", state.report()),
    ),
    "status": Topic(
        ("Give a status report.", "What is the status?", "Status?", "Summarise the state.", "How are you doing?"),
        _item("faults", _status),
    ),
}
