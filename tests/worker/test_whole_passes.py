"""A worker that replays whole chunks says how long they take, whatever an earlier worker measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from edgeflow.config.service import load_config
from edgeflow.contract import Pace, PassTimes
from edgeflow.engine.control.offline import limits_for
from edgeflow.ipc.messages import FrameResult, Message, OpenSession, WorkerReady
from edgeflow.worker import main
from edgeflow.worker.build import BuiltEngine
from tests.engine.flow.test_recordings import replaying
from tests.engine.flow.test_warmup import engine_of, frame
from tests.engine.flow.tiny_flow import JOINT_SHAPE, TinyFlowPolicy

PASSES = JOINT_SHAPE.sizes.program.passes
EAGER = PassTimes(stages=PASSES, prefill_ns=9, two_prefills_ns=9, packed_ns=9, decode_ns=9, decodes_ns=9)
WHOLE = replace(EAGER, whole_ns=9)


class OneFrame:
    """A channel of a robot that opens a session and sends a frame."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self._close: Callable[[], None] = lambda: None

    def send(self, message: Message) -> None:
        self.said.append(message)
        if isinstance(message, FrameResult):
            self._close()

    def read_forever(self, take: Callable[[Message], None], close: Callable[[], None]) -> None:
        self._close = close
        take(OpenSession(session=1, epoch=1, pace=Pace(1), unnorm_key="plain"))
        take(frame(1, 1, 0.5))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("known", [None, EAGER, WHOLE], ids=["first", "eager before", "replayed before"])
def test_a_restarted_worker_calibrates_again_where_it_replays_other_passes(
    recorded: bool, known: PassTimes | None, monkeypatch, tmp_path
):
    torch.set_num_threads(1)
    engine = replaying(JOINT_SHAPE) if recorded else engine_of(TinyFlowPolicy(JOINT_SHAPE), 1)
    built = BuiltEngine(
        engine=engine,
        limits=limits_for(PASSES),
        family="",
        device_name="",
        model_fingerprint="",
        memory="",
        rounds=False,
    )
    monkeypatch.setattr(main, "build_engine", lambda *_: built)
    channel = OneFrame()
    config = load_config(None, {"model": str(tmp_path), "chat": {"enabled": False}})
    main._serve(config, channel, known, None)
    (ready,) = (each for each in channel.said if isinstance(each, WorkerReady))
    (answer,) = (each for each in channel.said if isinstance(each, FrameResult))
    assert (ready.pass_times.whole_ns > 0) == recorded
    assert (ready.pass_times == known) == (known is not None and (known is WHOLE) == recorded)
    assert (answer.valid, answer.passes) == (True, 1 if recorded else PASSES)
