"""Questions about a state with their only right answers.

A topic is a set of phrasings and a rule that finds the subject and the answer in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from edgeflow.demo.chat.state import COLOURS, MODES, SHAPES, RobotState, StateSource, Thing, place_text

NO_OBJECTS: Final = "There are no objects."
EXTREMES: Final[dict[str, Callable[[Thing], int]]] = {
    "leftmost": lambda thing: -thing.place[1],
    "rightmost": lambda thing: thing.place[1],
    "nearest": lambda thing: thing.distance,
    "farthest": lambda thing: -thing.distance,
    "lowest": lambda thing: thing.place[2],
    "highest": lambda thing: -thing.place[2],
}
RELATIONS: Final = {
    "further left": "leftmost",
    "further right": "rightmost",
    "nearer": "nearest",
    "farther": "farthest",
    "lower": "lowest",
    "higher": "highest",
}
GAP: Final = 2  # cm between an extreme object and the next one


@dataclass(frozen=True, slots=True)
class Found:
    """What fills the braces of a phrasing, and the answer."""

    subject: str
    answer: str


@dataclass(frozen=True, slots=True)
class Topic:
    """find: None where the state gives no such question. again: of a follow-up about another subject, if any."""

    phrasings: tuple[str, ...]
    find: Callable[[RobotState, StateSource], Found | None]
    again: str = ""


def coordinate(thing: Thing, extreme: str) -> str:
    """The number that decides, as the report writes it."""
    if extreme in ("leftmost", "rightmost"):
        return f"y{thing.place[1]:+03d}"
    return f"d{thing.distance:02d}" if extreme in ("nearest", "farthest") else f"z{thing.place[2]:02d}"


def _name(state: RobotState, source: StateSource) -> str:
    """Mostly of an object that is there."""
    if state.things and source.rng.random() < 0.85:
        return source.rng.choice(state.things).name
    return f"{source.rng.choice(COLOURS)} {source.rng.choice(SHAPES)}"


def _thing(state: RobotState, name: str) -> Thing | None:
    return next((thing for thing in state.things if thing.name == name), None)


def _of_thing(tell: Callable[[Thing], str]) -> Callable[[RobotState, StateSource], Found | None]:
    def find(state: RobotState, source: StateSource) -> Found | None:
        name = _name(state, source)
        thing = _thing(state, name)
        return Found(name, tell(thing) if thing else f"There is no {name} in the state.")

    return find


def _side(thing: Thing) -> str:
    side = "left" if thing.place[1] > 0 else "right" if thing.place[1] < 0 else "middle"
    return f"The {thing.name} is at y{thing.place[1]:+03d}: {side}."


def _exists(state: RobotState, source: StateSource) -> Found:
    name = _name(state, source)
    thing = _thing(state, name)
    return Found(name, f"Yes, at {place_text(thing.place)}." if thing else f"No, there is no {name}.")


def _extreme(state: RobotState, source: StateSource) -> Found | None:
    extreme = source.rng.choice(list(EXTREMES))
    order = sorted(state.things, key=EXTREMES[extreme])
    if not order:
        return Found(extreme, NO_OBJECTS)
    if len(order) > 1 and EXTREMES[extreme](order[1]) - EXTREMES[extreme](order[0]) < GAP:
        return None
    return Found(extreme, f"The {order[0].name} is {extreme}, at {coordinate(order[0], extreme)}.")


def _compared(state: RobotState, source: StateSource) -> Found | None:
    if len(state.things) < 2:
        return None
    first, second = source.rng.sample(state.things, 2)
    relation = source.rng.choice(list(RELATIONS))
    extreme = RELATIONS[relation]
    verdict = "yes" if EXTREMES[extreme](first) < EXTREMES[extreme](second) else "no"
    shown = f"The {first.name} is at {coordinate(first, extreme)}, the {second.name} at {coordinate(second, extreme)}"
    return Found(f"{first.name} {relation} than the {second.name}", f"{shown}: {verdict}.")


def _listed(things: Iterable[Thing]) -> str:
    return ", ".join(f"the {thing.name}" for thing in things)


def _list(state: RobotState, _: StateSource) -> Found:
    listed = _listed(state.things)
    return Found("", f"{listed[0].upper()}{listed[1:]}." if listed else NO_OBJECTS)


def _count(state: RobotState, _: StateSource) -> Found:
    count = len(state.things)
    return Found("", "There is 1 object." if count == 1 else f"There are {count or 'no'} objects.")


def _count_some(state: RobotState, source: StateSource) -> Found:
    colour, shape = source.rng.choice(COLOURS), source.rng.choice(SHAPES)
    if state.things and source.rng.random() < 0.8:
        thing = source.rng.choice(state.things)
        colour, shape = thing.colour, thing.shape
    by_colour = source.rng.random() < 0.5
    plural = "boxes" if shape == "box" else f"{shape}s"
    kind = f"{colour} objects" if by_colour else plural
    some = [thing for thing in state.things if (thing.colour == colour if by_colour else thing.shape == shape)]
    listed = _listed(some)
    return Found(kind, f"{listed[0].upper()}{listed[1:]}: {len(some)}." if some else f"There are no {kind}.")


def _colour(state: RobotState, source: StateSource) -> Found | None:
    shape = source.rng.choice(state.things).shape if state.things and source.rng.random() < 0.9 else "ring"
    found = [thing.colour for thing in state.things if thing.shape == shape]
    if len(found) > 1:
        return None
    return Found(shape, f"The {shape} is {found[0]}." if found else f"There is no {shape} in the state.")


def _gripper_is(state: RobotState, source: StateSource) -> Found:
    asked = source.rng.choice(("open", "closed"))
    return Found(asked, f"{_yes(asked == state.gripper)}, the gripper is {state.gripper}.")


def _holding(state: RobotState) -> str:
    return f"it holds {'the ' + state.holding if state.holding else 'nothing'}."


def _holds(state: RobotState, source: StateSource) -> Found:
    name = state.holding if state.holding and source.rng.random() < 0.5 else _name(state, source)
    return Found(name, f"{_yes(name == state.holding)}, {_holding(state)}")


def _yes(right: bool) -> str:
    return "Yes" if right else "No"


def _item(
    item: str, tell: Callable[[RobotState], str], subject: Callable[[StateSource], str] = lambda _: ""
) -> Callable[[RobotState, StateSource], Found]:
    """A topic that one item of the report answers, or does not."""

    def find(state: RobotState, source: StateSource) -> Found:
        missing = f"The state does not give the {item}."
        return Found(subject(source), missing if item in state.silent else tell(state))

    return find


def _is_value(item: str, values: tuple[str, ...], value: Callable[[RobotState], str]) -> Topic:
    def find(state: RobotState, source: StateSource) -> Found:
        asked = value(state) if source.rng.random() < 0.4 else source.rng.choice(values)
        answer = f"{_yes(asked == value(state))}, the {item} is {value(state)}."
        return Found(asked, f"The state does not give the {item}." if item in state.silent else answer)

    return Topic((f"Is the {item} {{}}?", f"Is {{}} the {item}?", f"Tell me if the {item} is {{}}."), find)


def _against(item: str, unit: str, width: int, value: Callable[[RobotState], int]) -> Topic:
    """Is a number above or below another one?"""

    def find(state: RobotState, source: StateSource) -> Found:
        limit = source.number(1, 10**width - 1)
        above = source.rng.random() < 0.5
        verdict = "yes" if (value(state) > limit if above else value(state) < limit) else "no"
        answer = f"The {item} is {value(state):0{width}d}{unit}: {verdict}."
        missing = f"The state does not give the {item}."
        subject = f"{'above' if above else 'below'} {limit:0{width}d}{unit}"
        return Found(subject, missing if item in state.silent else answer)

    return Topic((f"Is the {item} {{}}?", f"Tell me if the {item} is {{}}.", f"Would you call the {item} {{}}?"), find)


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
    "extreme": Topic(
        ("Which object is {}?", "Which object is the {}?", "What is the {} object?", "Name the {} object."), _extreme
    ),
    "compared": Topic(("Is the {}?", "Is it true: is the {}?", "Yes or no: is the {}?"), _compared),
    "list": Topic(("List the objects.", "What objects are there?", "What is on the table?", "What do you see?"), _list),
    "count": Topic(("How many objects are there?", "How many objects do you see?", "Count the objects."), _count),
    "count some": Topic(("How many {} are there?", "How many {} do you see?", "Count the {}."), _count_some),
    "colour": Topic(("What colour is the {}?", "Which colour has the {}?", "Tell me the colour of the {}."), _colour),
    "pose": Topic(
        (
            "Where is the arm?",
            "What is the pose?",
            "Where are you?",
            "Where is the robot?",
            "Give the pose of the arm.",
        ),
        lambda state, _: Found("", f"The arm is at {place_text(state.pose)}."),
    ),
    "arm height": Topic(
        ("How high is the arm?", "What is the height of the arm?"),
        lambda state, _: Found("", f"The arm is at height {state.pose[2]:02d} cm."),
    ),
    "gripper": Topic(
        ("How is the gripper?", "What is the state of the gripper?", "What does the gripper do?"),
        lambda state, _: Found("", f"The gripper is {state.gripper}."),
    ),
    "gripper is": Topic(("Is the gripper {}?", "Tell me if the gripper is {}."), _gripper_is),
    "holding": Topic(
        ("What do you hold?", "What is the robot holding?", "What is in the gripper?", "What are you holding?"),
        lambda state, _: Found("", _holding(state).capitalize()),
    ),
    "holding any": Topic(
        ("Are you holding anything?", "Is anything in the gripper?", "Does the robot hold something?"),
        lambda state, _: Found("", f"{_yes(bool(state.holding))}, {_holding(state)}"),
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
    "fps against": _against("fps", "", 2, lambda state: state.fps),
    "age": Topic(
        ("What is the age?", "How old is the last action?", "What is the age of the last action?", "Tell me the age."),
        _item("age", lambda state: f"The age is {state.age_ms:03d} ms."),
    ),
    "age against": _against("age", " ms", 3, lambda state: state.age_ms),
    "faults": Topic(
        ("Are there faults?", "Is anything wrong?", "What faults are there?", "Is there a fault?", "Any faults?"),
        _item("faults", lambda state: f"Yes: {state.fault}." if state.fault else "No faults."),
    ),
    "repeat": Topic(
        ("Repeat the state.", "Repeat the robot state.", "Show me the state.", "Read the state to me."),
        lambda state, _: Found("", state.report()),
    ),
    "status": Topic(
        ("Give a status report.", "What is the status?", "Status?", "Summarise the state.", "How are you doing?"),
        _item("faults", _status),
    ),
}
