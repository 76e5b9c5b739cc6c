"""Proprioceptive state on its way to the wire."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow_client.connection.wire import open_message
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.observation import encode_state
from edgeflow_client.types import StateSpec
from tests.client.conftest import IMAGE
from tests.client.scripted import answer_all, session_settings

ARM = StateSpec(name="arm", size=3, elements=("a", "b", "c"), units=("rad", "rad", "rad"))
GRIPPER = StateSpec(name="gripper", size=1)
SPECS = (ARM, GRIPPER)


@given(st.permutations(["arm", "gripper"]))
def test_vectors_travel_one_after_another_in_the_order_of_the_session(order):
    vectors = {"arm": np.array([1.0, 2.0, 3.0]), "gripper": [0.5]}
    assert list(encode_state({name: vectors[name] for name in order}, (), SPECS)) == [1.0, 2.0, 3.0, 0.5]


def test_flat_numbers_travel_as_they_are():
    assert list(encode_state(None, [1.0, 2.0, 3.0, 0.5], SPECS)) == [1.0, 2.0, 3.0, 0.5]
    assert list(encode_state(None, (), ())) == []


@pytest.mark.parametrize(
    ("state", "proprio", "told"),
    [
        ({"arm": [1, 2, 3]}, (), r"state: has \['arm'\]; the session was opened with \['arm', 'gripper'\]"),
        ({"arm": [1, 2, 3], "gripper": [1], "base": [1]}, (), "base"),
        ({"arm": [1, 2], "gripper": [1]}, (), r"state\['arm'\]: has shape \[2\]; the session was opened with \[3\]"),
        ({"arm": [1, 2, 3], "gripper": 1.0}, (), r"state\['gripper'\]: has shape \[\]"),
        ({"arm": [[1, 2, 3]], "gripper": [1]}, (), r"state\['arm'\]: has shape \[1, 3\]"),
        ({"arm": [1, math.nan, 3], "gripper": [1]}, (), r"state\['arm'\]: has nan at 1"),
        ({"arm": [1, 2, 1e39], "gripper": [1]}, (), r"state\['arm'\]: has 1e\+39 at 2; it must be a finite float32"),
        ({"arm": ["left", 2, 3], "gripper": [1]}, (), r"state\['arm'\]: must be 3 numbers, got"),
        ({"arm": None, "gripper": [1]}, (), r"state\['arm'\]"),
        ({"arm": [1, 2, 3], "gripper": [1]}, [1.0], "state: give the state by name or as proprio, not both"),
        ({"arm": ["1", "2", "3"], "gripper": [1]}, (), r"state\['arm'\]: must be 3 numbers, got list"),
        ({"arm": "1 2 3", "gripper": [1]}, (), r"state\['arm'\]: must be 3 numbers, got str '1 2 3'"),
        ("1 2 3 4", (), r"state: must be a dict \{'arm': \[3 numbers\], 'gripper': \[1 numbers\]\}, got str"),
        ([1, 2, 3, 4], (), "state: must be a dict .*, got list"),
        ({"arm": [1, 2, 3], 7: [1]}, (), "state: has"),
        (None, "1234", "proprio: must be a list or a numpy array of numbers, got str"),
        (None, {0: 1.0}, "proprio: must be a list or a numpy array of numbers, got dict"),
        (None, ["1", "2", "3", "4"], r"state\['arm'\]: must be 3 numbers"),
        (None, [1, 2, 3], r"proprio: has 3 values; the session was opened with 4: 'arm' of 3, 'gripper' of 1"),
        (None, [1, 2, 3, math.inf], r"state\['gripper'\]: has inf at 0"),
    ],
)
def test_state_that_does_not_match_is_rejected_with_the_vector(state, proprio, told):
    with pytest.raises(InvalidArgument, match=told):
        encode_state(state, proprio, SPECS)


def test_open_declares_the_vectors_and_chunks():
    message = open_message(session_settings(state=SPECS), "grasp")
    assert [(each.name, each.size) for each in message.state] == [("arm", 3), ("gripper", 1)]
    assert (list(message.state[0].elements), list(message.state[0].units)) == (["a", "b", "c"], ["rad"] * 3)
    assert message.chunks
    assert not open_message(session_settings(chunks=False), "grasp").chunks


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"state": (GRIPPER, GRIPPER)}, "names a vector twice"),
        ({"state": (StateSpec(name="arm", size=0),)}, "'arm' has a size of 0"),
        ({"state": (StateSpec(name="arm", size=1 << 32),)}, "cannot be sent"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_rejected(changed, told):
    with pytest.raises(InvalidArgument, match=told):
        open_message(session_settings(**changed), "grasp")


@pytest.mark.parametrize("given", ["state", "proprio"])
def test_a_robot_declares_its_state_and_pushes_it(serve, connect, given):
    server = serve(answer_all)
    numbers = {"state": {"gripper": [0.5], "arm": [1, 2, 3]}} if given == "state" else {"proprio": [1, 2, 3, 0.5]}
    with connect(server, state=SPECS) as client:
        with pytest.raises(InvalidArgument, match="arm"):
            client.push(IMAGE)
        client.push(IMAGE, **numbers)
        opening, frame = server.heard.get(timeout=60).open, server.heard.get(timeout=60).frame
    assert [each.name for each in opening.state] == ["arm", "gripper"]
    assert list(frame.proprio) == [1.0, 2.0, 3.0, 0.5]
