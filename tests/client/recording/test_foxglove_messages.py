"""Session records as Foxglove's messages: read by `mcap`, with Foxglove's own schemas."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict
from mcap.reader import make_reader
from PIL import Image

from edgeflow_client.recording.records import RecordedHold, RecordedOutcome
from edgeflow_client.types import CameraSpec, Command, Disposition, ImageFormat, StateSpec
from tests.client.recording.written import (
    CAMERAS,
    JPEG,
    RAW,
    SCHEMA,
    OwnRecorder,
    answer,
    closing,
    frame,
    now_ns,
    opening,
)
from tests.oracles import oracle


def _messages(path: Path) -> dict[str, list[tuple[int, dict]]]:
    """The messages of each topic as dictionaries, with their log times, as another program reads them."""
    found: dict[str, list[tuple[int, dict]]] = {}
    with path.open("rb") as stream:
        for schema, channel, message in make_reader(stream).iter_messages():
            if schema.encoding == "protobuf":
                pool = descriptor_pool.DescriptorPool()
                for file in descriptor_pb2.FileDescriptorSet.FromString(schema.data).file:
                    pool.Add(file)
                kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(schema.name))
                fields = MessageToDict(kind.FromString(message.data), preserving_proto_field_name=True)
            else:
                fields = msgspec.json.decode(message.data)
            found.setdefault(channel.topic, []).append((message.log_time, fields))
    return found


def _schemas(path: Path) -> dict[str, tuple[str, bytes]]:
    with path.open("rb") as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    return {schema.name: (schema.encoding, schema.data) for schema in summary.schemas.values()}


@pytest.fixture
def written(tmp_path):
    """written(records, images) is a file with these records."""

    def write(records, images=(RAW, JPEG), **settings) -> Path:
        recorder = OwnRecorder(tmp_path, **settings)
        for record in records:
            recorder.put(record, images)
        recorder.close()
        (path,) = tmp_path.iterdir()
        return path

    return write


def test_images_joints_poses_and_lines_stand_on_topics_of_their_session(written):
    records = [
        opening(3),
        seen := frame(1, session=3),
        sent := answer(1, session=3),
        RecordedHold(session=3, time_ns=now_ns(), command=Command.STOP, reason="EMERGENCY"),
        RecordedOutcome(session=3, time_ns=now_ns(), seq=2, disposition=Disposition.ACTED),
        RecordedOutcome(session=3, time_ns=now_ns(), seq=3, last_seq=5, disposition=Disposition.SUPERSEDED),
        closing(3),
    ]
    messages = _messages(written(records))
    assert {topic for topic in messages if topic.startswith("/session")} == {
        f"/session-3/{name}" for name in ("images/wrist", "images/top", "state", "action", "pose", "log")
    }
    ((time_ns, raw),) = messages["/session-3/images/wrist"]
    assert time_ns == seen.time_ns
    assert (raw["width"], raw["height"], raw["step"], raw["encoding"], raw["frame_id"]) == (4, 2, 12, "rgb8", "wrist")
    ((time_ns, jpeg),) = messages["/session-3/images/top"]
    assert (time_ns, jpeg["format"]) == (seen.time_ns, "jpeg")
    ((time_ns, state),) = messages["/session-3/state"]
    assert state["joints"] == [{"name": "shoulder", "position": 1.1}, {"name": "elbow", "position": 1 / 3}]
    ((time_ns, action),) = messages["/session-3/action"]
    assert time_ns == sent.time_ns
    assert [joint["name"] for joint in action["joints"]] == list(SCHEMA.names)
    ((_, pose),) = messages["/session-3/pose"]
    assert pose["pose"]["position"] == {"x": 0.1, "y": 0.2, "z": 0.3}
    assert pose["pose"]["orientation"]["w"] == pytest.approx(0.9689124)  # half of a yaw of 0.5
    lines = [(line["level"], line["message"]) for _, line in messages["/session-3/log"]]
    assert lines[1:] == [("ERROR", "STOP: EMERGENCY"), ("DEBUG", "frame 3 to 5 superseded"), ("INFO", "closed")]


def test_own_records_have_a_schema_of_an_object_and_their_number(written):
    path = written([opening(), frame(1)])
    encoding, data = _schemas(path)["edgeflow.SessionRecord"]
    schema = msgspec.json.decode(data)
    assert (encoding, schema["type"]) == ("jsonschema", "object")
    assert "RecordedObservation" in schema["$defs"]
    assert [fields["record_number"] for _, fields in _messages(path)["/edgeflow/sessions"]] == [0, 1]


def test_thumbnails_are_small_rare_and_only_of_what_was_declared(written):
    picture = Image.radial_gradient("L").convert("RGB")  # 256 x 256
    jpeg = io.BytesIO()
    picture.save(jpeg, "JPEG")
    cameras = [
        CameraSpec("jpeg", 256, 256, ImageFormat.JPEG),
        CameraSpec("raw", 256, 256, ImageFormat.RGB8),
        CameraSpec("other", 99, 256, ImageFormat.JPEG),
        CameraSpec("broken", 8, 8, ImageFormat.JPEG),
    ]
    images = (jpeg.getvalue(), picture.tobytes(), jpeg.getvalue(), b"\xff\xd8\xff")
    frames = [frame(seq, images=images) for seq in range(1, 4)]  # within a moment
    messages = _messages(written([opening(cameras=cameras), *frames], images, cameras="thumbnails"))
    shown = {topic for topic in messages if "thumbnails" in topic or "images" in topic}
    assert shown == {"/session-1/thumbnails/jpeg", "/session-1/thumbnails/raw"}
    for topic in shown:
        ((time_ns, message),) = messages[topic]
        assert (time_ns, message["format"]) == (frames[0].time_ns, "jpeg")


def test_a_pose_in_the_state_comes_before_one_in_the_action(written):
    elements = ("x", "y", "z", "qx", "qy", "qz", "qw")
    state = StateSpec(name="tool", size=7, elements=elements)
    records = [
        msgspec.structs.replace(opening(), state=(state,)),
        msgspec.structs.replace(frame(1), state=(1.0, 2.0, 3.0, 0.0, 0.6, 0.0, 0.8)),
        msgspec.structs.replace(frame(2), state=(float("nan"),) * 7),
        answer(1),
    ]
    ((_, message),) = _messages(written(records))["/session-1/pose"]
    assert message["pose"] == {"position": {"x": 1, "y": 2, "z": 3}, "orientation": {"y": 0.6, "w": 0.8}}


@pytest.mark.oracle("wire/recordings")
def test_schemas_are_foxgloves_own(written):
    ours = _schemas(written([opening(cameras=CAMERAS), frame(1), closing()]))
    theirs = _schemas(oracle("wire/recordings") / "foxglove-sdk.mcap")
    common = {name for name in theirs if name in ours}
    assert common >= {"foxglove.CompressedImage", "foxglove.JointStates", "foxglove.Log"}
    assert all(ours[name] == theirs[name] for name in common)
