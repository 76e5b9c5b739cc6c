"""What is sent of a camera's images, and what cannot be."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import simplejpeg

from edgeflow_client.connection.credentials import is_local
from edgeflow_client.errors import DependencyError, EdgeflowError, InvalidArgument
from edgeflow_client.pictures import Picture, on_the_wire, resolved
from edgeflow_client.robot import RobotClient
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.client.scripted import Left, Talk, answer_all, opened

JPEG, RGB8 = ImageFormat.JPEG, ImageFormat.RGB8
RAW = CameraSpec("wrist", 64, 48, RGB8)
ROWS, COLUMNS = np.mgrid[0:48, 0:64]
PICTURE = np.stack([4 * COLUMNS, 5 * ROWS, 128 + 0 * ROWS], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:50051", True),
        ("[::1]:50051", True),
        ("unix:/run/edgeflow.sock", True),
        ("dns:///127.0.0.1:50051", True),
        ("10.0.0.2:50051", False),
        ("box.lab:50051", False),
        ("dns:///box.lab:50051", False),
    ],
)
def test_images_are_jpeg_unless_the_service_is_on_this_machine(address, local):
    assert is_local(address) is local
    (camera,) = resolved([RAW], local=local)
    assert camera.send is (RGB8 if local else JPEG)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("send", [JPEG, RGB8, "jpeg", "rgb8"])
def test_a_setting_counts_whatever_the_address(send, local):
    (camera,) = on_the_wire(resolved([replace(RAW, send=send)], local=local))
    assert camera.format is ImageFormat(send)


def test_images_that_are_jpeg_already_stay_as_they_are():
    encoded = replace(RAW, format=JPEG)
    assert resolved([encoded], local=False) == (replace(encoded, send=JPEG),)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"send": "png"}, "cameras[0].send"),
        ({"send": True}, "cameras[0].send"),
        ({"format": JPEG, "send": RGB8}, "cameras[0].send"),
        ({"format": JPEG, "resize": True}, "cameras[0].resize"),
        ({"resize": "yes"}, "cameras[0].resize"),
        ({"quality": 0}, "cameras[0].quality"),
        ({"quality": 101}, "cameras[0].quality"),
        ({"quality": 85.0}, "cameras[0].quality"),
    ],
)
def test_a_wrong_setting_is_named(changes, field):
    with pytest.raises(InvalidArgument) as caught:
        RobotClient("10.0.0.2:50051", cameras=[replace(RAW, **changes)], instruction="grasp", control_period_s=0.05)
    assert caught.value.field == field


def test_without_the_encoder_images_are_sent_as_they_are_unless_jpeg_is_asked_for(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert resolved([RAW], local=False)[0].send is RGB8
    assert "extra `images`" in caplog.text
    for asked in ({"send": JPEG}, {"resize": True}):
        with pytest.raises(DependencyError, match="extra `images`"):
            resolved([replace(RAW, **asked)], local=True)


def test_a_picture_is_encoded_where_it_is_sent_and_only_if_it_is(serve, connect, eventually, monkeypatch):
    encoded_in: list[str] = []
    encode = Picture.encoded

    def noted(picture: Picture) -> bytes:
        encoded_in.append(threading.current_thread().name)
        return encode(picture)

    monkeypatch.setattr(Picture, "encoded", noted)
    server = serve(answer_all)
    camera, mine = replace(RAW, send=JPEG, quality=95), PICTURE.copy()
    with connect(server, cameras=[camera]) as client:
        client.push(mine)
        mine[:] = 0  # a robot may use its buffer again
        eventually(lambda: client.statistics().actions == 1)
        (declared,) = server.heard.get(timeout=60).open.cameras
        assert (declared.format, declared.width, declared.height) == (pb.IMAGE_FORMAT_JPEG, 64, 48)
        (image,) = server.heard.get(timeout=60).frame.images
        seen = simplejpeg.decode_jpeg(image.data, colorspace="RGB")
        assert np.abs(seen.astype(int) - PICTURE).mean() < 3
    assert encoded_in
    assert threading.current_thread().name not in encoded_in


def test_a_lower_quality_takes_fewer_bytes():
    sizes = [len(Picture(PICTURE.tobytes(), replace(RAW, quality=quality)).encoded()) for quality in (95, 75, 30)]
    assert sizes == sorted(sizes, reverse=True)


def test_images_are_shrunk_to_what_the_service_says(serve, connect, eventually):
    def wanting(width: int, height: int):
        def script(talk: Talk) -> None:
            message = talk.hear()
            if message is None:
                raise Left
            (camera,) = message.open.cameras
            assert camera.resize
            answer = opened()
            answer.cameras.add(name=camera.name, width=width, height=height)
            talk.valid_for_ms = 100
            talk.say(opened=answer)
            for frame in talk.frames():
                talk.act(frame)

        return script

    server = serve(wanting(32, 24))
    with connect(server, cameras=[replace(RAW, resize=True)]) as client:
        client.push(PICTURE)
        eventually(lambda: client.statistics().actions == 1)
        server.heard.get(timeout=60)
        (image,) = server.heard.get(timeout=60).frame.images
    shrunk = np.frombuffer(image.data, np.uint8).reshape(24, 32, 3)
    means = PICTURE.reshape(24, 2, 32, 2, 3).mean(axis=(1, 3))
    assert np.abs(shrunk - means)[1:-1, 1:-1].max() <= 2
    larger = connect(serve(wanting(65, 48)), cameras=[replace(RAW, resize=True)], open_timeout_s=1)
    with pytest.raises(EdgeflowError, match="65x48"), larger:
        pass
