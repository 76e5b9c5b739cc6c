"""Sessions whose frames draft their tokens: over the wire, with a scripted worker."""

from __future__ import annotations

import grpc
import pytest

from edgeflow.contract import Pace, Speculation
from edgeflow.ipc.messages import OpenSession
from edgeflow.service.sessions.admission import OVERHEAD_NS
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import eventually, open_message, serving
from tests.service.scripted import Script

CODE = grpc.StatusCode
MS = 1_000_000


def opened_with(script: Script) -> OpenSession:
    (message,) = [message for message in script.worker.seen if isinstance(message, OpenSession)]
    return message


@pytest.mark.parametrize(
    ("asked", "speculation", "pace"),
    [
        ({}, Speculation(), "speculative"),
        ({"tolerance_bins": 1}, Speculation(1), "speculative, tolerance 1 bin"),
        (
            {"tolerance_bins": 2, "max_passes": 1},
            Speculation(2, 1),
            "speculative, tolerance 2 bins, at most 1 pass",
        ),
    ],
)
async def test_worker_robot_and_log_have_the_requested_settings(checkpoint, asked, speculation: Speculation, pace: str):
    script = Script()
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        opened = await robot.open(mode=pb.MODE_SPECULATIVE, max_action_age_ms=200, **asked)
        most = speculation.max_passes or 3
        assert (opened.mode, opened.depth) == (pb.MODE_SPECULATIVE, 0)
        assert (opened.tolerance_bins, opened.max_passes) == (speculation.tolerance_bins, most)
        message = opened_with(script)
        assert message.pace == Pace(0, speculation)
        assert message.patience_ns == 200 * MS - OVERHEAD_NS
        script.settled, script.passes = 2, 1
        await robot.frame(1)
        action = await robot.action(1)
        assert (action.settled, action.tolerance_bins, action.max_passes) == (2, speculation.tolerance_bins, most)
        (line,) = served.events("session_opened")
        assert (line["mode"], line["pace"]) == ("speculative", pace)


async def test_passes_and_unverified_tokens_are_counted(checkpoint):
    script = Script()
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SPECULATIVE)
        for seq, (passes, settled) in enumerate([(2, 3), (1, 2), (3, 3)], start=1):
            script.passes, script.settled = passes, settled
            await robot.frame(seq)
            await robot.action(seq)
            await robot.status(seq)
        await eventually(lambda: served.metric("edgeflow_action_passes_count") == 3)
        assert served.metric("edgeflow_action_passes_sum") == 6
        assert served.metric("edgeflow_action_passes_bucket", le="2.0") == 2
        assert served.metric("edgeflow_actions_unsettled_total") == 1


async def test_frames_that_a_newer_one_overtook_are_superseded_and_say_so(checkpoint):
    script = Script(hold=True)
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open(mode=pb.MODE_SPECULATIVE)
        for seq in (1, 2, 3):
            await robot.frame(seq)
            await eventually(lambda seq=seq: len(script.worker.held) == seq)
        script.worker.overtake(2)
        script.worker.release()
        first = await robot.status(1)
        assert (first.disposition, first.reason) == (pb.DISPOSITION_SUPERSEDED, "OVERTAKEN")
        assert first.text == "a newer frame was answered first" and not first.code
        assert (await robot.action(3)).command == pb.COMMAND_ACT
        await robot.status(3)
        assert robot.dispositions() == [
            *((seq, pb.DISPOSITION_SUPERSEDED) for seq in (1, 2)),
            (3, pb.DISPOSITION_ACTED),
        ]
        await eventually(
            lambda: served.metric("edgeflow_frames_total", disposition="superseded", reason="OVERTAKEN") == 2
        )


async def test_with_one_token_per_action_speculative_is_serial_and_the_robot_is_notified(checkpoint):
    script = Script(stages=1)
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        opened = await robot.open(mode=pb.MODE_SPECULATIVE)
        assert (opened.mode, opened.depth, opened.max_passes) == (pb.MODE_SERIAL, 1, 0)
        assert opened_with(script).pace == Pace(1)
        assert "drafts no tokens" in (await robot.notice("mode")).text


@pytest.mark.parametrize(
    ("mode", "age_ms", "patience_ns"),
    [
        (pb.MODE_SPECULATIVE, 0, 0),
        (pb.MODE_SPECULATIVE, 1, 1),
        (pb.MODE_SPECULATIVE, 150, 150 * MS - OVERHEAD_NS),
        (pb.MODE_AUTO, 150, 150 * MS - OVERHEAD_NS),
        (pb.MODE_PIPELINED, 150, 0),
    ],
)
async def test_where_frames_may_draft_the_worker_hears_how_old_they_may_get(checkpoint, mode, age_ms, patience_ns):
    """Mode auto may change to it later."""
    script = Script()
    async with serving(checkpoint, script, max_action_age_ms=0) as served:
        await served.robot().open(mode=mode, max_action_age_ms=age_ms)
        assert opened_with(script).patience_ns == patience_ns


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mode": pb.MODE_SERIAL, "tolerance_bins": 1}, "open.tolerance_bins: may only be set with mode speculative"),
        ({"mode": pb.MODE_AUTO, "max_passes": 1}, "open.max_passes: may only be set with mode speculative"),
        ({"max_passes": 1}, "open.max_passes: may only be set with mode speculative"),
        ({"mode": pb.MODE_SPECULATIVE, "tolerance_bins": 3}, "open.tolerance_bins: must be 0 to 2, got 3"),
        ({"mode": pb.MODE_SPECULATIVE, "max_passes": 4}, "open.max_passes: is 4; this model takes 1 to 3"),
        ({"mode": pb.MODE_SPECULATIVE, "depth": 2}, "open.depth: may only be set with mode depth"),
    ],
)
async def test_invalid_values_are_rejected_with_the_range(checkpoint, asked, said: str):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.send(pb.ClientMessage(open=open_message(**asked)))
        status, text = await robot.rest()
        assert status is CODE.INVALID_ARGUMENT and said in text


async def test_the_service_s_parameters_are_for_those_who_name_no_mode(checkpoint):
    script = Script()
    async with serving(checkpoint, script, mode="speculative", tolerance_bins=1, max_passes=2) as served:
        opened = await served.robot().open()
        assert (opened.mode, opened.tolerance_bins, opened.max_passes) == (pb.MODE_SPECULATIVE, 1, 2)
        assert opened_with(script).pace == Pace(0, Speculation(1, 2))
