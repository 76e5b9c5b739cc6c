"""Chunks after a HOLD: what was played before it is over, whatever moments its rows were for."""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow_client.blending import TemporalEnsemble, Weighted
from edgeflow_client.rpc import control_pb2 as pb
from tests.client.test_chunks import DIMS, STEP_MS, ChunkSession


@pytest.mark.parametrize("blending", [Weighted(), TemporalEnsemble()])
@pytest.mark.parametrize("held", [False, True])
def test_nothing_from_before_a_hold_is_blended(blending, held: bool):
    robot = ChunkSession(blending=blending, horizon=100)
    before, after = np.full((100, DIMS), -0.5), np.full((100, DIMS), 0.5)
    for _ in range(5):
        assert robot.act(robot.push(), rows=before, valid_for_ms=250)
        robot.wait(STEP_MS)
    if held:
        robot.session.stream_message(
            pb.ServerMessage(action=pb.Action(epoch=1, command=pb.COMMAND_HOLD, reason="HELD"))
        )
    else:
        robot.wait(300)
    assert robot.act(robot.push(), rows=after, valid_for_ms=250)
    assert np.array_equal(robot.session.directive().action.values, after[0])
