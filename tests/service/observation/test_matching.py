"""What a robot sends and what a policy needs: matched, or rejected with both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.config.matching import Names, short
from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.observation.requests import OpenRequest, matched, narrowed
from edgeflow_client.errors import ConfigError, InvalidArgument, RequestError
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

NOTHING = Names(cameras={}, state={})


def camera(name: str, width: int = 64, height: int = 48) -> CameraSpec:
    return CameraSpec(name, width, height, ImageFormat.JPEG)


def vector(name: str, size: int = 1, elements: str = "", units: str = "") -> StateSpec:
    return StateSpec(name=name, size=size, elements=tuple(elements.split()), units=tuple(units.split()))


def request(*cameras: CameraSpec, state: tuple[StateSpec, ...] = ()) -> OpenRequest:
    return OpenRequest(
        cameras=cameras or (camera("front"),),
        instruction="go",
        control_period_ns=1,
        max_action_age_ns=None,
        mode=None,
        unnorm_key="",
        state=state,
    )


def needs(*cameras: CameraNeed, state: tuple[StateSpec, ...] = ()) -> PolicyInputs:
    return PolicyInputs(cameras=cameras, state=state)


def seen(opened: OpenRequest) -> list[str]:
    return [each.name for each in opened.policy_cameras]


TOP, WRIST = CameraNeed(name="observation.images.top"), CameraNeed(name="observation.images.wrist")
STATE = needs(state=(vector("observation.state", 2, "shoulder elbow", "rad rad"),))


def test_cameras_are_matched_by_the_last_part_of_their_keys_and_come_in_the_policy_s_order():
    sent = request(camera("spare"), camera("wrist"), camera("observation.images.top"))
    assert seen(matched(sent, needs(TOP, WRIST), NOTHING)) == ["observation.images.top", "wrist"]


@pytest.mark.parametrize(
    ("name", "last"),
    [("observation.images.top", "top"), ("observation.state", "state"), ("top", "top"), ("images.top", "images.top")],
)
def test_the_field_s_keys(name: str, last: str):
    assert short(name) == last


def test_an_equal_name_comes_before_an_alike_one_and_two_alike_ones_are_none():
    both = request(camera("top"), camera("observation.images.top"))
    assert seen(matched(both, needs(TOP), NOTHING)) == ["observation.images.top"]
    with pytest.raises(InvalidArgument, match=r"no camera is the policy's 'observation\.images\.top'"):
        matched(request(camera("top"), camera("observation.top")), needs(TOP), NOTHING)


def test_a_configured_name_wins_over_an_equal_one():
    sent = request(camera("top"), camera("front"))
    names = Names(cameras={"observation.images.top": "front"}, state={})
    assert seen(matched(sent, needs(TOP), names)) == ["front"]
    with pytest.raises(InvalidArgument) as caught:
        matched(request(camera("top")), needs(TOP), names)
    assert caught.value.reason == "INPUT_MISSING"


def test_a_camera_that_the_checkpoint_does_not_name_is_the_first_whatever_its_name():
    any_camera = CameraNeed(name="image", named=False)
    assert seen(matched(request(camera("wrist"), camera("top")), needs(any_camera), NOTHING)) == ["wrist"]
    assert seen(matched(request(camera("wrist"), camera("image")), needs(any_camera), NOTHING)) == ["wrist"]
    names = Names(cameras={"image": "top"}, state={})
    assert seen(matched(request(camera("wrist"), camera("top")), needs(any_camera), names)) == ["top"]


def test_a_missing_camera_is_rejected_with_both_sides_and_the_line_to_configure():
    with pytest.raises(InvalidArgument) as caught:
        matched(request(camera("top"), camera("gripper")), needs(TOP, WRIST), NOTHING)
    assert (caught.value.field, caught.value.reason) == ("open.cameras", "INPUT_MISSING")
    for part in (
        "the policy needs 'observation.images.top' of any size, 'observation.images.wrist' of any size",
        "the robot sends 'top' 64x48, 'gripper' 64x48",
        '"cameras": {"observation.images.wrist": "gripper"}',
    ):
        assert part in caught.value.text


def test_a_camera_of_another_size_is_rejected():
    exact = CameraNeed(name="top", width=64, height=48)
    assert seen(matched(request(camera("top")), needs(exact), NOTHING)) == ["top"]
    with pytest.raises(InvalidArgument, match="'top' is 64x64; the policy takes 'top' 64x48") as caught:
        matched(request(camera("top", 64, 64)), needs(exact), NOTHING)
    assert caught.value.reason == "INPUT_SIZE"


def test_more_pixels_than_cross_to_the_worker_are_rejected():
    sent = request(*(camera(name, 4000, 4000) for name in ("top", "wrist")))
    assert matched(sent, needs(TOP), NOTHING)
    with pytest.raises(InvalidArgument, match="bytes of pixels together") as caught:
        matched(sent, needs(TOP, WRIST), NOTHING)
    assert caught.value.reason == "CAMERA_SIZE"


@pytest.mark.parametrize("sent", ["cam_high", "observation.images.cam_high"])
@pytest.mark.parametrize("configured", ["cam_high", "observation.images.cam_high"])
@pytest.mark.parametrize("name", ["top", "observation.images.top"])
def test_configured_names_may_be_the_field_s_keys_or_their_last_parts(name: str, configured: str, sent: str):
    names = Names(cameras={name: configured}, state={})
    assert seen(matched(request(camera("wrist"), camera(sent)), needs(TOP, WRIST), names)) == [sent, "wrist"]


@pytest.mark.parametrize("key", ["state", "observation.state"])
def test_so_may_those_of_state(key: str):
    names = Names(cameras={}, state={key: ["observation.arm", "gripper"]})
    opened = matched(request(state=(vector("observation.gripper"), vector("arm"))), STATE, names)
    assert opened.policy_numbers == (1, 0)


@pytest.mark.parametrize("robot", [("wrist",), ("wrist", "top")])
def test_a_camera_is_not_two_of_the_policy_s(robot: tuple[str, ...]):
    names = Names(cameras={"top": "wrist"}, state={})
    with pytest.raises(InvalidArgument, match=r"'wrist' would be .*images\.top' and its 'observation\.images\.wrist'"):
        matched(request(*map(camera, robot)), needs(TOP, WRIST), names)
    both = Names(cameras={"top": "wrist", "wrist": "top"}, state={})
    assert seen(matched(request(camera("wrist"), camera("top")), needs(TOP, WRIST), both)) == ["wrist", "top"]


@pytest.mark.parametrize(
    ("cameras", "state", "text"),
    [
        ({"left": "a"}, {}, r"^cameras: the policy has no 'left'; its names are 'observation\.images\.top', '"),
        ({}, {"pose": "state"}, r"^state: the policy has no 'pose'; its names are 'observation\.state'"),
        ({"top": "a", "observation.images.wrist": "a"}, {}, "^cameras: 'a' is mapped to .*top' and .*wrist'"),
        ({"top": "a", "observation.images.top": "b"}, {}, "^cameras: 'observation.images.top' is mapped twice"),
    ],
)
def test_a_configuration_that_cannot_be_of_the_policy_is_rejected(cameras: dict, state: dict, text: str):
    with pytest.raises(ConfigError, match=text):
        Names(cameras=cameras, state=state).of_policy(needs(TOP, WRIST, state=STATE.state))


def test_state_is_picked_by_name_wherever_it_stands_in_a_frame():
    state = (vector("pose", 3), vector("state", 2), vector("gripper"))
    assert matched(request(state=state), STATE, NOTHING).policy_numbers == (3, 4)
    both = needs(state=(vector("gripper"), vector("pose", 3)))
    assert matched(request(state=state), both, NOTHING).policy_numbers == (5, 0, 1, 2)


def test_a_list_of_vectors_makes_up_one():
    names = Names(cameras={}, state={"observation.state": ["arm", "gripper"]})
    opened = matched(request(state=(vector("gripper"), vector("arm"))), STATE, names)
    assert opened.policy_numbers == (1, 0)
    with pytest.raises(InvalidArgument, match=r"'arm', configured as the policy's 'observation\.state'"):
        matched(request(state=(vector("gripper"),)), STATE, names)


def test_single_numbers_make_up_a_vector_that_has_their_names_as_elements():
    sent = request(state=(vector("time"), vector("shoulder"), vector("elbow")))
    assert matched(sent, STATE, NOTHING).policy_numbers == (1, 2)
    with pytest.raises(InvalidArgument) as caught:
        matched(request(state=(vector("elbow"), vector("shoulder"))), STATE, NOTHING)
    assert caught.value.reason == "INPUT_ORDER"
    with pytest.raises(InvalidArgument) as caught:
        matched(request(state=(vector("elbow"),)), STATE, NOTHING)
    assert caught.value.reason == "INPUT_MISSING"


@pytest.mark.parametrize(
    ("sent", "reason", "text"),
    [
        (vector("state", 3), "INPUT_SIZE", "'state' has 3 numbers; the policy takes 2"),
        (vector("state", 2, "elbow shoulder"), "INPUT_ORDER", "number 0 .* is 'shoulder', and 'elbow' came"),
        (vector("state", 2, units="rad deg"), "INPUT_UNIT", "number 1 .* is 'rad', and 'deg' came"),
        (vector("joints", 2), "INPUT_MISSING", r'"state": \{"observation.state": "joints"\}'),
    ],
)
def test_other_state_is_rejected_with_both_sides(sent: StateSpec, reason: str, text: str):
    with pytest.raises(InvalidArgument, match=text) as caught:
        matched(request(state=(sent,)), STATE, NOTHING)
    assert (caught.value.field, caught.value.reason) == ("open.state", reason)
    assert "the policy needs 'observation.state' of 2 numbers (shoulder rad, elbow rad)" in caught.value.text
    assert f"the robot sends '{sent.name}' of {sent.size} numbers" in caught.value.text


@pytest.mark.parametrize(
    "sent", [vector("state", 2), vector("state", 2, "shoulder elbow"), vector("state", 2, "", "rad rad")]
)
def test_unstated_elements_and_units_are_not_compared(sent: StateSpec):
    assert matched(request(state=(sent,)), STATE, NOTHING).policy_numbers == (0, 1)


def test_a_rejection_has_a_bounded_length():
    many = tuple(vector(f"{index:064}") for index in range(256))
    long = needs(state=(vector("s", 200, " ".join(f"{index:064}" for index in range(200))),))
    with pytest.raises(InvalidArgument) as caught:
        matched(request(state=many), long, Names(cameras={}, state={"s": [each.name for each in many[:100]]}))
    assert len(caught.value.text) < 2000


def test_a_line_to_configure_is_short_or_left_out():
    need = needs(state=(vector("s", 4, "a b c d"),))
    for length, told in ((10, True), (64, True), (200, False)):
        joints = tuple(vector("é" * length + str(index)) for index in range(4))
        with pytest.raises(InvalidArgument) as caught:
            matched(request(state=joints), need, NOTHING)
        assert ('"state": {"s": ["éé' in caught.value.text) is told


def test_a_narrowed_request_is_matched_again_with_the_same_numbers():
    state = (vector("pose", 3), vector("state", 2), vector("gripper"))
    opened = matched(request(state=state), STATE, NOTHING)
    fewer, numbers = narrowed(opened, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (fewer.state, numbers) == ((state[1],), [3.0, 4.0])
    assert matched(fewer, STATE, NOTHING).policy_numbers == (0, 1)


KEYS = st.sampled_from(["a", "b", "c", "observation.images.a", "observation.images.b", "observation.c"])
SENT_CAMERAS = st.lists(KEYS, min_size=1, max_size=4, unique=True).map(lambda names: [camera(name) for name in names])
NEEDED = st.lists(st.builds(CameraNeed, name=KEYS, named=st.booleans()), max_size=3, unique_by=lambda need: need.name)
SENT_STATE = st.lists(st.builds(vector, KEYS, st.integers(1, 3)), max_size=4, unique_by=lambda each: each.name)
NEEDED_STATE = st.lists(st.builds(vector, KEYS, st.integers(1, 3)), max_size=3, unique_by=lambda each: each.name)
CONFIGURED = st.dictionaries(KEYS, KEYS, max_size=2)


def last(name: str) -> str:
    return name.split(".")[-1]


def naive_place(name: str, names: list[str]) -> list[str]:
    """None or one of the names: the same one, or the only one with this last part."""
    alike = [each for each in names if last(each) == last(name)]
    return [name] if name in names else alike * (len(alike) == 1)


def naive_camera(need: CameraNeed, names: list[str], configured: dict[str, str]) -> list[str]:
    if need.name not in configured and not need.named:
        return names[:1]
    return naive_place(configured.get(need.name, need.name), names)


@given(SENT_CAMERAS, NEEDED, CONFIGURED)
def test_cameras_match_as_the_naive_rule_says(
    sent: list[CameraSpec], needed: list[CameraNeed], configured: dict[str, str]
):
    policy = [need.name for need in needed]
    keys = [each for name in configured for each in naive_place(name, policy)]
    mapped = list(configured.values())
    names = Names(cameras=configured, state={})
    if len(set(keys)) < len(configured) or len(set(mapped)) < len(mapped):
        with pytest.raises(ConfigError):
            matched(request(*sent), needs(*needed), names)
        return
    by_policy = dict(zip(keys, mapped, strict=True))
    found = [naive_camera(need, [each.name for each in sent], by_policy) for need in needed]
    try:
        opened = matched(request(*sent), needs(*needed), names)
    except RequestError as error:
        wanted = "INPUT_MISSING" if [] in found else "INPUT_MAPPING"
        assert error.reason == wanted and ([] in found or len({each[0] for each in found}) < len(found))
    else:
        assert [[name] for name in seen(opened)] == found


@given(SENT_STATE, NEEDED_STATE)
def test_state_that_is_matched_has_the_numbers_of_the_vectors_of_that_name(
    sent: list[StateSpec], needed: list[StateSpec]
):
    numbers = [f"{each.name} {place}" for each in sent for place in range(each.size)]
    try:
        opened = matched(request(state=tuple(sent)), needs(state=tuple(needed)), NOTHING)
    except RequestError as error:
        assert error.reason in ("INPUT_MISSING", "INPUT_SIZE") and error.field == "open.state"
    else:
        assert len(opened.policy_numbers) == sum(each.size for each in needed)
        got = iter(numbers[index] for index in opened.policy_numbers)
        for need in needed:
            names = [next(got).split() for _ in range(need.size)]
            assert {name.split(".")[-1] for name, _ in names} == {need.name.split(".")[-1]}
            assert [int(place) for _, place in names] == list(range(need.size))


@pytest.mark.parametrize(
    ("size", "need", "wanted"),
    [
        ((640, 480), {"side": 224}, (299, 224)),
        ((480, 640), {"side": 224}, (224, 299)),
        ((640, 480), {"side": 480}, (640, 480)),
        ((320, 240), {"side": 384}, (320, 240)),  # never larger
        ((640, 480), {}, (640, 480)),
        ((640, 480), {"width": 128, "height": 96}, (128, 96)),
    ],
)
def test_a_robot_shrinks_its_images_to_what_the_policy_takes(size, need, wanted):
    sent = request(camera("spare"), replace(camera("top", *size), resize=True))
    found = matched(sent, needs(CameraNeed(name="top", **need)), NOTHING)
    assert found.cameras == (camera("spare"), replace(camera("top", *wanted), resize=True))
    assert found.policy_cameras == found.cameras[1:]


def test_images_are_not_distorted_nor_shrunk_unless_the_robot_says_so():
    for sent in (replace(camera("top", 640, 360), resize=True), camera("top", 640, 480)):
        with pytest.raises(InvalidArgument, match="the policy takes"):
            matched(request(sent), needs(CameraNeed(name="top", width=128, height=96)), NOTHING)
