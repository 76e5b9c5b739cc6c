"""Proprioceptive state on the wire: vectors at open, numbers per frame, within limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.frontends.grpc.checks import check_open
from edgeflow.service.frontends.grpc.codec import check_frame
from edgeflow.service.observation.checks import MAX_NUMBER, check_numbers, check_request
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import StateSpec
from tests.service.harness import frame_message, open_message, received

LIMITS = LimitsConfig()
ARM = pb.StateVector(name="arm", size=2, elements=["shoulder", "elbow"], units=["rad", ""])


def state_of(*vectors: pb.StateVector, limits: LimitsConfig = LIMITS) -> tuple[StateSpec, ...]:
    return check_open(open_message(state=vectors), "demo", limits).state


def test_vectors_are_read_whole_and_older_clients_names_are_vectors_of_one_number():
    assert state_of(ARM, pb.StateVector(name="gripper", size=1)) == (
        StateSpec(name="arm", size=2, elements=("shoulder", "elbow"), units=("rad", "")),
        StateSpec(name="gripper", size=1),
    )
    old = check_open(open_message(proprio_names=["a", "b", "a"]), "demo", LIMITS)
    assert old.state == tuple(StateSpec(name=name, size=1) for name in "aba") and old.numbers == 3
    assert not old.chunks and check_open(open_message(chunks=True), "demo", LIMITS).chunks


@pytest.mark.parametrize(
    ("vectors", "field", "reason"),
    [
        ([pb.StateVector(name="a", size=257)], "open.state", "STATE_COUNT"),
        ([pb.StateVector(name="a", size=200), pb.StateVector(name="b", size=57)], "open.state", "STATE_COUNT"),
        ([pb.StateVector(name="a", size=4_000_000_000)], "open.state", "STATE_COUNT"),
        ([pb.StateVector(name="a")], "open.state[0].size", "STATE_COUNT"),
        ([ARM, pb.StateVector(name="arm", size=1)], "open.state", "STATE_NAME"),
        ([pb.StateVector(size=1)], "open.state[0].name", "BAD_NAME"),
        ([pb.StateVector(name="a", size=2, elements=["x"])], "open.state[0].elements", "STATE_COUNT"),
        ([ARM, pb.StateVector(name="a", size=1, units=["m", "m"])], "open.state[1].units", "STATE_COUNT"),
        ([pb.StateVector(name="a", size=1, units=["m\n"])], "open.state[0].units[0]", "BAD_NAME"),
        ([pb.StateVector(name="a", size=1, elements=["x" * 65])], "open.state[0].elements[0]", "BAD_NAME"),
    ],
)
def test_bad_vectors_are_rejected(vectors: list[pb.StateVector], field: str, reason: str):
    with pytest.raises(InvalidArgument) as caught:
        state_of(*vectors)
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_names_and_vectors_exclude_each_other():
    with pytest.raises(InvalidArgument) as caught:
        check_open(open_message(state=[ARM], proprio_names=["a"]), "demo", LIMITS)
    assert (caught.value.field, caught.value.reason) == ("open.state", "STATE_TWICE")


def test_a_service_may_take_no_state():
    with pytest.raises(InvalidArgument):
        state_of(pb.StateVector(name="a", size=1), limits=LimitsConfig(proprio=0))


@given(st.lists(st.floats(width=32), max_size=6), st.integers(0, 6))
def test_numbers_pass_if_they_are_as_many_as_agreed_and_plausible(values: list[float], expected: int):
    good = len(values) == expected and all(math.isfinite(value) and abs(value) <= MAX_NUMBER for value in values)
    try:
        assert check_numbers(values, expected) == tuple(values) and good
    except InvalidArgument as error:
        assert not good and error.field.startswith("frame.proprio")


def test_a_frame_has_the_numbers_of_all_vectors():
    opened = check_open(open_message(state=[ARM, pb.StateVector(name="gripper", size=1)]), "demo", LIMITS)
    message = frame_message(1, proprio=[0.5, -0.5, 1.0])
    frame = check_frame(received(message), opened, LIMITS)
    assert frame.state == (0.5, -0.5, 1.0)
    with pytest.raises(InvalidArgument, match="has 2 values; the session was opened with 3 numbers"):
        check_frame(received(frame_message(1, proprio=[0.5, -0.5])), opened, LIMITS)


@given(
    st.lists(
        st.builds(
            StateSpec, name=st.text("abc", min_size=1, max_size=3), size=st.integers(1, 120), elements=st.just(())
        ),
        max_size=4,
    )
)
def test_another_process_s_check_agrees(vectors: list[StateSpec]):
    messages = [pb.StateVector(name=vector.name, size=vector.size) for vector in vectors]
    try:
        opened = check_open(open_message(state=messages), "demo", LIMITS)
    except InvalidArgument:
        names = [vector.name for vector in vectors]
        assert len(set(names)) < len(names) or sum(vector.size for vector in vectors) > LIMITS.proprio
    else:
        assert opened.state == tuple(vectors)
        check_request(opened, LIMITS)
