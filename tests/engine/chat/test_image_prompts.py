"""Images of a chat request are resized beside the worker's loop: robots are served meanwhile."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeflow.contract import Pace
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.ipc.chat_messages import ChatDone, ChatRejected, ChatStart, ChatStop, ChatToken
from edgeflow.ipc.messages import FrameResult, OpenSession
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.qwen2_5_vl import ImagePreprocessor
from tests.chat_checkpoint import IMAGE_TOKEN, write_chat_checkpoint
from tests.engine.chat.test_loop import CPU, ChatBench, K, built, frame, request_of

SIDE = 2000
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ChatModel:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("images")
    write_chat_checkpoint(directory, "qwen2_5_vl")
    return load_chat_model(directory, torch.float32, CPU)


def picture(side: int) -> np.ndarray:
    return np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)


def asking(*images: np.ndarray, ids: tuple[int, ...] = (97, 98)) -> ChatStart:
    """A request with a place per image."""
    sizes = [side for image in images for side in image.shape[:2]]
    payload = b"".join(image.tobytes() for image in images)
    places = [*ids, *[IMAGE_TOKEN] * len(images), *ids]
    return replace(request_of(places), sizes=sizes, max_tokens=4, payload=payload)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    """Holds every resize until it is set; one that waits for longer than any test fails."""
    opened = threading.Event()
    resize = ImagePreprocessor.__call__

    def gated(self: ImagePreprocessor, image: np.ndarray):
        assert opened.wait(PATIENCE_S), "nothing else ran while an image was resized"
        return resize(self, image)

    monkeypatch.setattr(ImagePreprocessor, "__call__", gated)
    yield opened
    opened.set()


def run_until(bench: ChatBench, kind: type, frames: int = 0) -> None:
    """Turns of the loop until an answer of that kind; the loop sleeps where it would, until it is woken."""
    deadline = time.monotonic() + PATIENCE_S
    while not bench.of(kind):
        assert time.monotonic() < deadline, f"no {kind.__name__}: {bench.said[-3:]}"
        if not bench.worker.step():
            bench.clock.advance_ns(1_000_000)
            if bench.worker.wake_at_ns() is None:
                bench.worker.inbox.wait(PATIENCE_S)


def test_robots_are_served_while_an_image_is_resized(policy, model, gate):
    bench = ChatBench(policy, built(model))
    bench.tell(OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", period_ns=50_000_000), asking(picture(60)))
    for seq in range(1, 4):
        bench.tell(frame(seq))
        for _ in range(20):
            if not bench.worker.step():
                bench.clock.advance_ns(1_000_000)
    assert len(bench.of(FrameResult)) == 3 and not bench.of(ChatToken)
    gate.set()
    run_until(bench, ChatDone)
    prompt = model.prompt(asking(picture(60)).ids, [picture(60)])
    engine = ChatEngine(model, model.decoder.kv_slots(1, 96))
    wanted = Generation(engine, prompt, SamplingParams(max_tokens=4))
    list(generate(engine, wanted, 16))
    assert [each.token for each in bench.of(ChatToken)] == wanted.tokens


def test_a_loop_that_sleeps_is_woken_when_the_prompt_is_there(policy, model, gate):
    bench = ChatBench(policy, built(model))
    bench.tell(asking(picture(60)))
    assert not bench.worker.step() and bench.worker.wake_at_ns() is None, "nothing to run, and no time to wake at"
    gate.set()
    run_until(bench, ChatDone)


def test_a_rejection_and_a_stop_while_it_is_resized(policy, model, gate):
    bench = ChatBench(policy, built(model))
    bench.tell(asking(picture(60)))
    bench.worker.step()
    bench.tell(ChatStop(1, cancelled=True))
    bench.worker.step()
    assert bench.of(ChatDone)[0].reason == "cancelled"
    gate.set()
    wrong = replace(asking(picture(60)), request=2, ids=[97])
    bench.tell(wrong)
    run_until(bench, ChatRejected)
    assert (bench.of(ChatRejected)[0].code, bench.of(ChatRejected)[0].field) == ("INVALID_ARGUMENT", "messages")
    bench.said.clear()
    bench.tell(replace(asking(picture(60)), request=3, payload=b"short"))
    run_until(bench, ChatRejected)
    assert bench.of(ChatRejected)[0].field == "payload"


def test_images_of_a_stopped_request_do_not_delay_the_next_one(policy, model, gate, monkeypatch):
    """The first request's image is being resized and the second's waits for the thread when both are stopped."""
    resized, taken_up = [], threading.Event()
    resize = ImagePreprocessor.__call__

    def noted(self: ImagePreprocessor, image: np.ndarray):
        resized.append(len(image))
        taken_up.set()
        return resize(self, image)

    monkeypatch.setattr(ImagePreprocessor, "__call__", noted)
    bench = ChatBench(policy, built(model))
    for request, side in ((1, 60), (2, 64)):
        bench.tell(replace(asking(picture(side)), request=request))
        bench.worker.step()
    assert taken_up.wait(PATIENCE_S)
    for request in (2, 1):
        bench.tell(ChatStop(request, cancelled=True))
        bench.worker.step()
    assert [(each.request, each.reason) for each in bench.of(ChatDone)] == [(2, "cancelled"), (1, "cancelled")]
    bench.said.clear()
    bench.tell(replace(asking(picture(68)), request=3))
    gate.set()
    run_until(bench, ChatDone)
    assert bench.of(ChatDone)[0].request == 3 and resized == [60, 68]


def test_no_turn_resizes_the_images_of_a_request(policy, model, monkeypatch):
    """Four images of four megapixels beside a robot at 20 Hz: one turn used to resize all."""
    threads: list[str] = []
    resize = ImagePreprocessor.__call__

    def noted(self: ImagePreprocessor, image: np.ndarray):
        threads.append(threading.current_thread().name)
        return resize(self, image)

    monkeypatch.setattr(ImagePreprocessor, "__call__", noted)
    bench = ChatBench(policy, built(model, capacity=96))
    bench.tell(
        OpenSession(session=1, epoch=1, pace=Pace(K), unnorm_key="", period_ns=50_000_000),
        asking(*[picture(SIDE)] * 4),
    )
    seq, until_s = 0, time.monotonic() + PATIENCE_S
    while not bench.of(ChatRejected):
        seq += 1
        bench.tell(frame(seq))
        bench.worker.step()
        bench.clock.advance_ns(10_000_000)
        bench.worker.inbox.wait(0.001)
        assert time.monotonic() < until_s
    assert bench.of(ChatRejected)[0].reason == "CONTEXT_LENGTH_EXCEEDED", "no tower runs: it is one step"
    assert len(threads) == 4 and threading.current_thread().name not in threads
