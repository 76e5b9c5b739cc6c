"""Statistics of frames in flight: latency at execution, and the time in which the robot was held."""

from __future__ import annotations

from tests.client.test_chunks import MS, ChunkSession


def test_latency_at_execution_is_counted_per_row_and_held_time_after_the_first_action():
    robot = ChunkSession()
    robot.session.directive()
    robot.wait(500)  # before the first action the robot is not held
    frame = robot.push()
    robot.wait(30)
    robot.act(frame, valid_for_ms=40)
    for _ in range(4):
        robot.session.directive()
        robot.wait(10)
    robot.session.directive()  # over
    robot.wait(60)
    counts = robot.session.statistics()
    latencies = (counts.latency_at_execution_p50_ns, counts.latency_at_execution_max_ns)
    assert (counts.steps, *latencies) == (3, 40 * MS, 60 * MS)
    assert (counts.held_ns, counts.directed_ns, counts.held_share) == (60 * MS, 100 * MS, 0.6)
    robot.session.reset("")
    robot.session.directive()
    robot.wait(100)
    assert robot.session.statistics().held_ns == 60 * MS, "between episodes nothing counts"
