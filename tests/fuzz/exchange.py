"""Good and bad frames in turn on one stream, each answer compared with what must come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import grpc

from edgeflow.service.frontends.grpc.codec import Unparsable, parse_client_message
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz.kinds import KINDS, OPEN, PERIOD_MS, BadInput, good_frame
from tests.service.harness import WireRobot

PICTURES = 4
BAD_A_STREAM = 80  # a hundred refusals in ten seconds would end it
NO_NUMBER = {"MESSAGE_UNPARSABLE", "MESSAGE_EMPTY"}
Answers = dict[int, tuple[tuple[int, ...], tuple[float, ...]]]  # picture → tokens, values
Connect = Callable[[], WireRobot]


class NoRoom(Exception):
    """No room for another session at the moment."""


@dataclass(slots=True)
class KindReport:
    """One kind."""

    sent: int = 0
    problems: list[str] = field(default_factory=list)
    reply_ns: list[int] = field(default_factory=list)
    """Bad frame sent to its status."""
    acted_ns: list[int] = field(default_factory=list)
    """Next good frame sent to its action."""


FIRST = 3  # good frames that begin a stream: so many must agree on the robot's clock before a stamp is in its future


class FuzzedStream:
    """One stream from Open to its end."""

    def __init__(self, robot: WireRobot) -> None:
        self.robot = robot
        self._seq = 0

    async def open(self, period_ms: int = PERIOD_MS) -> None:
        """OPEN, with another control period if one is given; rejected if there is no room."""
        opened = pb.Open()
        opened.CopyFrom(OPEN)
        opened.control_period_ms = period_ms
        await self.robot.send(pb.ClientMessage(open=opened))
        try:
            await self.robot.until(lambda m: m.WhichOneof("kind") == "opened")
        except AssertionError:
            if await self.robot.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise NoRoom from None
            raise

    async def good(self, picture: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The tokens and values of a good frame; rejected if the place of a silent robot was taken."""
        frame = self.next(picture)
        await self.robot.send(pb.ClientMessage(frame=frame))
        answer = await self.robot.until(lambda m: m.action.seq == frame.seq or m.frame_status.seq == frame.seq)
        if answer.frame_status.code == "RESOURCE_EXHAUSTED":
            raise NoRoom
        action = answer.action
        assert action.command == pb.COMMAND_ACT and action.stamp_ns == frame.stamp_ns
        return tuple(action.token_ids), tuple(action.values)

    async def bad(self, kind: BadInput, rng: Random) -> tuple[str, int]:
        """Send a spoilt frame; what is wrong with the answer, or nothing, and how long it took."""
        data = kind.spoil(self.next(rng.randrange(PICTURES)), rng)
        start_ns = time.perf_counter_ns()
        await self.robot.send(data)
        answer = await self.robot.until(_is_refusal)
        reply_ns = time.perf_counter_ns() - start_ns
        return problem(kind, data, answer), reply_ns

    async def close(self) -> None:
        await self.robot.send(pb.ClientMessage(close=pb.Close()))
        await self.robot.rest()

    def next(self, picture: int) -> pb.Frame:
        """The next good frame, which the caller sends."""
        self._seq += 1
        return good_frame(self._seq, time.monotonic_ns(), picture)


async def clean_run(connect: Connect) -> Answers:
    """The answers to good frames without bad ones in between."""
    conversation = FuzzedStream(connect())
    await conversation.open()
    answers = {picture: await conversation.good(picture) for picture in range(PICTURES)}
    await conversation.close()
    return answers


async def run_kind(connect: Connect, name: str, count: int, seed: int, clean: Answers) -> KindReport:
    """`count` bad frames of a kind, good ones before and after each."""
    rng = Random(f"{name} {seed}")
    report = KindReport()
    for begin in range(0, count, BAD_A_STREAM):
        conversation = FuzzedStream(connect())
        await conversation.open()
        for _ in range(FIRST):
            await conversation.good(0)
        for _ in range(min(BAD_A_STREAM, count - begin)):
            await _turn(conversation, KINDS[name], rng, clean, report)
        await conversation.close()
    return report


async def _turn(conversation: FuzzedStream, kind: BadInput, rng: Random, clean: Answers, report: KindReport) -> None:
    picture = rng.randrange(PICTURES)
    wrong, reply_ns = await conversation.bad(kind, rng)
    start_ns = time.perf_counter_ns()
    answer = await conversation.good(picture)
    report.acted_ns.append(time.perf_counter_ns() - start_ns)
    report.reply_ns.append(reply_ns)
    report.sent += 1
    if answer != clean[picture]:
        wrong = wrong or f"the next good frame's answer {answer} differs from a clean run's {clean[picture]}"
    if wrong:
        report.problems.append(wrong)


def problem(kind: BadInput, data: bytes, answer: pb.ServerMessage) -> str:
    """Nothing, or how the answer to a bad frame is not the one that its kind must get."""
    if kind.notice:
        code, text = answer.notice.code, answer.notice.text
        right = answer.notice.kind == "rejected"
    else:
        status = answer.frame_status
        code, text = status.code, status.text
        right = status.reason in kind.reasons and status.seq == _number(status.reason, data)
    right = right and code == kind.code and text.startswith(kind.field) and all(word in text for word in kind.words)
    return "" if right else str(answer)[:500]


def _number(reason: str, data: bytes) -> int:
    """The frame number that a rejection must name: 0 if none could be read."""
    parsed = parse_client_message(data)
    return 0 if reason in NO_NUMBER or isinstance(parsed, Unparsable) else parsed.message.frame.seq


def _is_refusal(message: pb.ServerMessage) -> bool:
    if message.WhichOneof("kind") == "notice":
        return message.notice.kind == "rejected"
    return message.frame_status.disposition == pb.DISPOSITION_REJECTED
