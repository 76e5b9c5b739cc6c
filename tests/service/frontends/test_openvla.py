"""`POST /act` in its three dialects: recorded sessions of OpenVLA and OFT, GR00T's bodies, and bad ones."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.frontends.numpy_json import array_json, parse
from edgeflow.service.frontends.observation import Reader
from edgeflow.service.frontends.openvla import MAX_VALUES, ActDialect, ActStyle, answer, read
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import FailedPrecondition, InvalidArgument, RequestError
from edgeflow_client.types import StateSpec
from tests.service.frontends.recordings import WireMessage, comparable, described, wire_messages

MESSAGES = wire_messages("wire/openvla")
PAIRS = [(MESSAGES[at], MESSAGES[at + 1]) for at in range(len(MESSAGES) - 1) if MESSAGES[at].sender == "client"]
GOOD = [pair for pair in PAIRS if b"__numpy__" in pair[1].data]
BAD = [pair for pair in PAIRS if b"__numpy__" not in pair[1].data]


@pytest.mark.oracle("wire/openvla")
@pytest.mark.parametrize(("request_", "reply"), GOOD, ids=[str(request) for request, _ in GOOD])
def test_a_recorded_request_is_read_and_answered_as_recorded(request_: WireMessage, reply: WireMessage):
    seen, style = read(request_.data)
    content = comparable(request_.content)
    assert style == ActStyle(ActDialect(next(iter(content))), request_.what == "double-encoded")
    assert seen.instruction == content.pop("instruction") and seen.unnorm_key == content.pop("unnorm_key", "")
    assert described({**seen.images, **seen.state}) == content
    assert list(seen.images) == [key for key in content if "image" in key]
    rows = reply.content if isinstance(reply.content, list) else [reply.content]
    assert answer(np.array([row["values"] for row in rows]), style) == reply.data


@pytest.mark.oracle("wire/openvla")
@pytest.mark.parametrize(("request_", "reply"), BAD, ids=[str(request) for request, _ in BAD])
def test_a_recorded_bad_request_is_rejected(request_: WireMessage, reply: WireMessage):
    """The original answers "error" to most of them, with status 200."""
    with pytest.raises(InvalidArgument) as caught:
        read(request_.data)
    fields = {"no image (refused)": "image", "no JSON": "body", "encoded beside another key (refused)": "encoded"}
    assert reply.status in (200, 422) and caught.value.field == fields[request_.what]


IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def openvla(**changes: Any) -> dict[str, Any]:
    return {"image": array_json(IMAGE), "instruction": "go", **changes}


def oft(**changes: Any) -> dict[str, Any]:
    return {"full_image": array_json(IMAGE), "state": [0.5, -1], "instruction": "go", **changes}


def groot(**changes: Any) -> dict[str, Any]:
    observation = {
        "video.front": array_json(IMAGE[None]),
        "video.wrist": IMAGE[None, ::-1].tolist(),
        "state.single_arm": array_json(np.arange(5.0)[None]),
        "state.gripper": [[0.25]],
        "annotation.human.task_description": ["go"],
    }
    members = {**observation, **changes}
    return {"observation": {key: each for key, each in members.items() if each is not None}}


def body(value: Any, double: bool = False) -> bytes:
    return json.dumps({"encoded": json.dumps(value)} if double else value).encode()


def test_images_and_state_may_be_lists():
    seen, _ = read(body(openvla(image=IMAGE.tolist())))
    assert seen.images["image"].dtype == np.uint8 and (seen.images["image"] == IMAGE).all()
    seen, _ = read(body(oft(right_wrist=IMAGE.tolist(), left_wrist=array_json(IMAGE), timestamp=1)))
    assert list(seen.images) == ["full_image", "right_wrist", "left_wrist"]
    assert seen.state["state"].tolist() == [0.5, -1.0]


def test_a_list_of_224_by_224_pixels_is_taken():
    seen, _ = read(body(openvla(image=np.zeros((224, 224, 3), int).tolist())))
    assert seen.images["image"].shape == (224, 224, 3)
    with pytest.raises(InvalidArgument, match=f"more than {MAX_VALUES} values"):
        read(body(openvla(image=np.zeros((256, 256, 3), int).tolist())))


@pytest.mark.parametrize("double", [False, True])
def test_gr00t_is_answered_in_the_parts_of_its_state(double: bool):
    seen, style = read(body(groot(), double))
    assert style == ActStyle(ActDialect.GROOT, double, (("single_arm", 5), ("gripper", 1)))
    assert (seen.images["front"] == IMAGE).all() and (seen.images["wrist"] == IMAGE[::-1]).all()
    assert {name: each.tolist() for name, each in seen.state.items()} == {
        "single_arm": [0.0, 1.0, 2.0, 3.0, 4.0],
        "gripper": [0.25],
    }
    assert seen.instruction == "go" and seen.fields["front"] == "observation.video.front"
    rows = np.arange(12, dtype=np.float32).reshape(2, 6)
    reply = answer(rows, style)
    actions, _ = parse(json.loads(reply).encode() if double else reply, 100)
    assert described(actions) == described(
        {"action.single_arm": rows[:, :5].astype("<f8"), "action.gripper": rows[:, 5:].astype("<f8")}
    )
    with pytest.raises(FailedPrecondition, match="has 6 numbers, an action of the policy 7"):
        answer(np.zeros((2, 7)), style)


def test_openvla_gets_the_first_row_and_oft_all():
    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    first = answer(rows, ActStyle(ActDialect.OPENVLA, False))
    assert json.loads(first) == array_json(rows[0].astype("<f8"))
    assert json.loads(answer(rows, ActStyle(ActDialect.OFT, False))) == [array_json(row.astype("<f8")) for row in rows]


FRONT, ARM = "observation.video.front", "observation.state.single_arm"
REJECTED = {
    "two dialects": ({**openvla(), **oft()}, "full_image", "BODY_FIELD"),
    "no dialect": ({"instruction": "go"}, "image", "BODY_FIELD"),
    "an unknown key": (openvla(state=[1]), "state", "BODY_FIELD"),
    "a number as instruction": (openvla(instruction=1), "instruction", "BODY_FIELD"),
    "a number as unnorm_key": (openvla(unnorm_key=1), "unnorm_key", "BODY_FIELD"),
    "a text as image": (openvla(image="/9j/"), "image", "ARRAY_TYPE"),
    "text as state": (oft(state=["1"]), "state", "ARRAY_TYPE"),
    "an observation that is no object": ({"observation": 1}, "observation", "BODY_FIELD"),
    "a key beside the observation": ({**groot(), "rtc": {}}, "rtc", "BODY_FIELD"),
    "an unknown prefix": (groot(**{"audio.top": 1}), "observation.audio.top", "BODY_FIELD"),
    "two kinds of text": (groot(**{"annotation.other": ["x"]}), "observation.annotation.other", "BODY_FIELD"),
    "two texts": (
        groot(**{"annotation.human.task_description": ["a", "b"]}),
        "observation.annotation.human.task_description",
        "BODY_FIELD",
    ),
    "two steps of a camera": (groot(**{"video.front": [IMAGE.tolist()] * 2}), FRONT, "ARRAY_SHAPE"),
    "a camera without steps": (groot(**{"video.front": array_json(IMAGE)}), FRONT, "ARRAY_SHAPE"),
    "two steps of state": (groot(**{"state.single_arm": [[1.0], [1.0]]}), ARM, "ARRAY_SHAPE"),
    "state without steps": (groot(**{"state.single_arm": [1.0]}), ARM, "ARRAY_SHAPE"),
}


@pytest.mark.parametrize(("value", "field", "reason"), REJECTED.values(), ids=REJECTED.keys())
@pytest.mark.parametrize("double", [False, True])
def test_a_bad_request_is_rejected_by_its_field(value: Any, field: str, reason: str, double: bool):
    with pytest.raises(InvalidArgument) as caught:
        read(body(value, double))
    assert (caught.value.field, caught.value.reason) == (field, reason)


CONFIG = ServiceConfig.model_validate({"frontends": {"openvla": {"instruction": "wait"}}})
NEEDS = {
    ActDialect.OPENVLA: PolicyInputs(cameras=(CameraNeed(name="image"),)),
    ActDialect.OFT: PolicyInputs(
        cameras=(CameraNeed(name="full_image"),), state=(StateSpec(name="observation.state", size=2),)
    ),
    ActDialect.GROOT: PolicyInputs(
        cameras=(CameraNeed(name="observation.images.front"), CameraNeed(name="wrist")),
        state=(StateSpec(name="single_arm", size=5),),
    ),
}


def observed(data: bytes) -> tuple[OpenRequest, CheckedFrame]:
    """As the front end reads a body: the request for a session, and its frame."""
    seen, style = read(data)
    return Reader(CONFIG, "openvla").read(seen, NEEDS[style.dialect])


@pytest.mark.parametrize("value", [openvla(instruction=None), oft(instruction=None), groot()])
def test_an_observation_fits_the_policy(value: Any):
    opened, frame = observed(body(value))
    assert bytes(frame.images[0]) == IMAGE.tobytes() and opened.front == "openvla"
    assert opened.instruction == ("go" if "observation" in value else "wait"), "the configured one for clients without"


MISFITS = {
    "floats beyond 1 as pixels": (openvla(image=array_json(IMAGE / 2.0)), "image"),
    "pixels of 256": (openvla(image=[[[0, 0, 256]]]), "image"),
    "pixels of -1": (openvla(image=[[[0, 0, -1]]]), "image"),
    "NaN as pixels": (openvla(image=array_json(np.full((1, 1, 3), np.nan))), "image"),
    "grey": (openvla(image=array_json(IMAGE[..., 0])), "image"),
    "no pixels": (openvla(image=array_json(IMAGE[:0])), "image"),
    "no camera": (groot(**{"video.front": None, "video.wrist": None}), "observation"),
    "another camera": (groot(**{"video.front": None}), "observation"),
    "a part that is missing": (groot(**{"state.single_arm": None}), "observation"),
    "one number of two": (oft(state=[0.5]), "state"),
    "control characters": (
        groot(**{"annotation.human.task_description": "\a"}),
        "observation.annotation.human.task_description",
    ),
    "half a character": (openvla(instruction="\ud800"), "instruction"),
    "NaN in the state": (oft(state=array_json(np.array([0, np.nan]))), "state[1]"),
    "infinity in the state": (oft(state=array_json(np.array([np.inf, 0]))), "state[0]"),
    "a matrix as state": (oft(state=[[1.0]]), "state"),
    "booleans as state": (oft(state=array_json(np.ones(2, bool))), "state"),
    "NaN in a part": (groot(**{"state.single_arm": array_json(np.full((1, 5), np.nan))}), f"{ARM}[0]"),
    "grey in a part": (groot(**{"video.front": array_json(IMAGE[None, ..., 0])}), FRONT),
}


@pytest.mark.parametrize(("value", "field"), MISFITS.values(), ids=MISFITS.keys())
def test_an_array_that_is_not_what_it_stands_for_is_rejected_by_its_field(value: Any, field: str):
    with pytest.raises(InvalidArgument) as caught:
        observed(body(value))
    assert caught.value.field == field


def mutated(data: bytes, rng: Random) -> bytes:
    """A real body with a few bytes changed, cut out or repeated."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) or 1)
        new = rng.choice((b"", bytes([rng.choice(b'{}[]",:0-1e\\ntuN\xff')]), changed[at : at + 9]))
        changed[at : at + rng.choice((0, 1, 1, 1, 8))] = new
    return bytes(changed)


def test_a_mutated_body_is_an_observation_or_an_error():
    rng, taken = Random(0), 0
    bodies = [body(value, double) for value in (openvla(), oft(), groot()) for double in (False, True)]
    for _ in range(6000):
        try:
            _, frame = observed(mutated(rng.choice(bodies), rng))
            assert all(map(len, frame.images)) and np.isfinite(frame.state).all()
            taken += 1
        except RequestError as error:
            assert error.text.isprintable()
    assert 300 < taken < 5700
