"""Observations of robots' own clients: what the policy gets of them, and rejections in the client's own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgeflow.config.matching import Names
from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.frontends.observation import ClientObservation, Reader
from edgeflow.service.observation.checks import check_request
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest, matched, narrowed
from edgeflow_client.errors import InvalidArgument, NotFound, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import StateSpec
from tests.service.harness import config

TOP, WRIST = CameraNeed(name="observation.images.top"), CameraNeed(name="wrist")
INPUTS = PolicyInputs(
    cameras=(TOP, WRIST), state=(StateSpec(name="observation.state", size=3), StateSpec(name="hand", size=1))
)
RNG = np.random.default_rng(5)
SETTINGS = config()


def image(height: int = 4, width: int = 6) -> NDArray[Any]:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def seen(**changes: Any) -> ClientObservation:
    values: dict[str, Any] = {
        "images": {"top": image(), "wrist": image(3, 2)},
        "state": {"state": np.array([1, 2, 3]), "hand": np.array(0.25)},
        "instruction": "go",
    }
    return ClientObservation(**{**values, **changes})


def read(value: ClientObservation, inputs: PolicyInputs = INPUTS, **settings: Any) -> tuple[OpenRequest, CheckedFrame]:
    return Reader(config(**settings), "openpi").read(value, inputs)


def rejection(value: ClientObservation, inputs: PolicyInputs = INPUTS, **settings: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(value, inputs, **settings)
    return caught.value


def test_the_policy_s_cameras_and_state_are_taken_and_nothing_else():
    given_images = seen().images
    opened, frame = read(seen(images={"depth": np.zeros((3, 3)), **given_images, "other": image()}))
    assert [each.name for each in opened.policy_cameras] == ["top", "wrist"]
    assert [each.name for each in opened.cameras] == ["top", "wrist"]
    assert [bytes(each) for each in frame.images] == [given_images[name].tobytes() for name in ("top", "wrist")]
    assert frame.state == (1.0, 2.0, 3.0, 0.25) and opened.policy_numbers == (0, 1, 2, 3)
    assert opened.front == "openpi" and opened.chunks and frame.instruction == "go"


def test_configured_names_win():
    images = {"cam": image(), "hand_cam": image()}
    settings = {
        "frontends__openpi__cameras": {"top": "cam", "wrist": "hand_cam"},
        "frontends__openpi__state": {"state": ["joints", "finger"]},
        "frontends__openpi__instruction": "stack the cups",
    }
    state = {"joints": np.zeros(2), "finger": np.ones(1), "hand": np.array([7.0])}
    opened, frame = read(seen(images=images, state=state, instruction=""), **settings)
    assert [each.name for each in opened.policy_cameras] == ["cam", "hand_cam"]
    assert [frame.state[index] for index in opened.policy_numbers] == [0, 0, 1, 7]
    assert frame.instruction == "stack the cups"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_become_bytes_as_openpi_makes_them(dtype: type):
    levels = np.linspace(0, 1, 4 * 6 * 3, dtype=dtype).reshape(4, 6, 3)
    _, frame = read(seen(images={"top": levels, "wrist": image()}))
    assert bytes(frame.images[0]) == (255 * levels).astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("changes", "reason", "field", "words"),
    [
        ({"images": {"top": np.full((4, 4, 3), np.nan)}}, Reason.INPUT_MISSING, "cameras", "wrist"),
        ({"images": {"top": np.full((4, 4, 3), np.inf), "wrist": image()}}, Reason.IMAGE_WRONG_FORMAT, "top", "0 to 1"),
        ({"images": {"top": np.full((4, 4, 3), -0.1), "wrist": image()}}, Reason.IMAGE_WRONG_FORMAT, "top", "0 to 1"),
        ({"images": {"top": image()[None], "wrist": image()}}, Reason.IMAGE_WRONG_SIZE, "top", "[1, 4, 6, 3]"),
        ({"images": {"top": image().astype(bool), "wrist": image()}}, Reason.IMAGE_WRONG_FORMAT, "top", "bool"),
        ({"images": {"top": image(0, 4), "wrist": image()}}, Reason.CAMERA_SIZE, "top", "4x0"),
        ({"images": {"top": image(1, 9000), "wrist": image()}}, Reason.CAMERA_SIZE, "top", "8192"),
        ({"images": {"top": image(700, 700), "wrist": image()}}, Reason.CAMERA_SIZE, "top", "1048576"),
        ({"state": {"state": np.zeros(3)}}, Reason.INPUT_MISSING, "state", "hand"),
        ({"state": {"state": np.zeros((1, 3)), "hand": np.ones(1)}}, Reason.STATE_COUNT, "state", "[1, 3]"),
        (
            {"state": {"state": np.array([1, -np.inf, 0]), "hand": np.ones(1)}},
            Reason.PROPRIO_NOT_FINITE,
            "state[1]",
            "",
        ),
        ({"state": {"state": np.zeros(3), "hand": np.array(2e6)}}, Reason.PROPRIO_OUT_OF_RANGE, "hand[0]", "1e+06"),
        ({"state": {"state": np.zeros(3), "hand": np.array("x")}}, Reason.STATE_COUNT, "hand", "vector"),
        ({"instruction": ""}, Reason.TEXT_EMPTY, "instruction", "frontends.openpi.instruction"),
        ({"instruction": "\x07"}, Reason.TEXT_BAD_CHARACTER, "instruction", ""),
        ({"unnorm_key": "\n"}, Reason.BAD_NAME, "unnorm_key", "64"),
    ],
)
def test_rejections_name_the_client_s_field(changes: dict[str, Any], reason: Reason, field: str, words: str):
    fields = {"top": "observation/top", "hand": "arm.hand"}
    error = rejection(seen(**changes, fields=fields))
    assert (error.reason, error.field) == (reason, field.replace("top", "observation/top").replace("hand", "arm.hand"))
    assert words in error.text and error.text.startswith(error.field)


def test_another_model_is_not_found():
    with pytest.raises(NotFound, match="model"):
        read(seen(model="other"), alias="mine")
    assert read(seen(model="mine"), alias="mine")


def test_a_camera_without_a_name_is_the_first_one():
    inputs = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))
    opened, _ = read(seen(), inputs)
    assert [each.name for each in opened.policy_cameras] == ["top"]
    assert opened.state == () and opened.policy_numbers == ()


NAMES = st.sampled_from(["top", "wrist", "observation.images.top", "images.wrist", "state", "hand", "x", "", "a" * 65])
ARRAYS = st.builds(
    lambda shape, kind: np.zeros(shape, kind),
    st.lists(st.integers(0, 5) | st.just(3), max_size=4).map(tuple),
    st.sampled_from(["u1", "i8", "f4", "f8", "?", "u8"]),
)


@given(st.dictionaries(NAMES, ARRAYS, max_size=6), st.dictionaries(NAMES, ARRAYS, max_size=6), st.text(max_size=5))
def test_any_body_is_rejected_or_passes_control_s_checks(
    images: dict[str, Any], state: dict[str, Any], instruction: str
):
    """Control ends a process that sends it anything unchecked."""
    settings = SETTINGS
    try:
        opened, frame = Reader(settings, "openpi").read(
            ClientObservation(images=images, state=state, instruction=instruction), INPUTS
        )
    except InvalidArgument as error:
        assert error.field and error.text
        return
    sent, numbers = narrowed(opened, frame.state)
    check_request(sent, settings.limits)
    assert matched(sent, INPUTS, Names.of(settings, INPUTS, "openpi")).policy_cameras == opened.policy_cameras
    assert len(numbers) == sent.numbers == 4
    sizes = [each.width * each.height * 3 for each in opened.cameras]
    assert [len(each) for each in frame.images] == sizes
