"""The plans of sessions: forecasts when one opens, and new ones when sessions leave or pass times drift."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from edgeflow.ipc.messages import Pong, WorkerReady
from edgeflow.scheduler.forecast import AnswerForecast
from edgeflow.service.errors import no_session, no_worker
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.admission import Admission, SessionPlan
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow_client.errors import RETRY_AFTER_MS, RequestError, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Mode


class Planner:
    """Plans new sessions and replans open ones. runners: the open sessions, owned by the control plane."""

    def __init__(
        self, admission: Admission, runners: Mapping[int, SessionRunner], *, metrics: Metrics, log: EventLog
    ) -> None:
        self._admission = admission
        self._runners = runners
        self._metrics = metrics
        self._log = log
        self._has_worker = False
        self._answers: dict[int, AnswerForecast] = {}
        self._answers_stale = False
        self._forecasting: asyncio.Task[None] | None = None
        self._planning = asyncio.Lock()
        self._replanning: asyncio.Task[None] | None = None

    async def plan(self, number: int, request: OpenRequest) -> SessionPlan:
        """Plan a session. Forecasts take milliseconds: they run one at a time, and in a thread if robots are served."""
        async with self._planning:
            if not self._has_worker:
                raise no_worker()
            with self._metrics.rejections():
                if self._runners:
                    plan, answers = await asyncio.to_thread(self._planned, number, request)
                else:
                    plan, answers = self._planned(number, request)
            self._admission.enter(number, plan)
            self._give_forecasts(answers)
            return plan

    async def change_mode(self, number: int, request: OpenRequest) -> None:
        """Plan an open session again, with another mode in its request; a RequestError, and no change, if that fails.

        request: that of the session, with the other mode.
        """
        async with self._planning:
            if not self._has_worker:
                raise no_worker()
            plan = await asyncio.to_thread(self._admission.plan, request, self._admission.others(number))
            runner = self._runners.get(number)
            if runner is None or runner.session.ended is not None:
                raise no_session(number)
            if runner.session.ring_wanted:  # it is planned in the former mode at this moment
                text = "the robot is about to return from a silence"
                raise ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
            if not runner.session.parked:
                self._admission.enter(number, plan)
            runner.change_mode(request, plan)
            self._answers_stale = True

    def answers(self, number: int) -> AnswerForecast:
        """The forecast for a session that was planned."""
        return self._answers[number]

    def leave(self, number: int) -> None:
        """A session frees its share of the device."""
        self._answers_stale = self._admission.leave(number) or self._answers_stale

    def worker_ready(self, ready: WorkerReady) -> None:
        """A worker measured its pass times."""
        self._has_worker = True
        self._admission.worker_ready(ready)
        self._metrics.predict(self._admission.modes())
        self._answers_stale = bool(self._runners)

    def worker_lost(self) -> None:
        """Nothing can be planned until another worker is ready."""
        self._has_worker = False

    def observe(self, message: Pong, now_ns: int) -> None:
        """Add the pass times measured since the last call; plan again if they drifted."""
        if self._admission.observe(message, now_ns):
            self._replanning = asyncio.create_task(self._replan(), name="replan")

    def tick(self) -> None:
        """Forecast the ages of all sessions again if something changed them."""
        if self._answers_stale and (self._forecasting is None or self._forecasting.done()):
            self._answers_stale = False
            self._forecasting = asyncio.create_task(self._forecast_again(), name="forecast")

    def _planned(self, number: int, request: OpenRequest) -> tuple[SessionPlan, dict[int, AnswerForecast]]:
        """A plan for one more session, and the resulting answers of all sessions."""
        plans = self._admission.plans
        plan = self._admission.plan(request, tuple(plans.values()))
        return plan, self._admission.forecast_answers(plans | {number: plan})

    def _give_forecasts(self, answers: dict[int, AnswerForecast]) -> None:
        self._answers = answers
        for number, runner in self._runners.items():
            if number in answers:
                runner.session.answers.take_forecast(answers[number])

    async def _forecast_again(self) -> None:
        """Forecast the answers of all sessions after one left or pass times changed."""
        async with self._planning:
            plans = self._admission.plans
            if plans and self._has_worker:
                self._give_forecasts(await asyncio.to_thread(self._admission.forecast_answers, plans))

    async def _replan(self) -> None:
        """Pass times drifted: update the forecasts, and the pace of sessions in mode auto."""
        modes = await asyncio.to_thread(self._admission.modes)
        self._metrics.predict(modes)
        self._log.event("forecasts_changed", **{mode: f"{seen.fps:.1f} FPS" for mode, seen in modes.items()})
        for number, runner in list(self._runners.items()):
            if runner.plan.mode in (Mode.AUTO, Mode.SPECULATIVE) and not runner.session.parked:
                await self._replan_one(number, runner)
        self._answers_stale = True

    async def _replan_one(self, number: int, runner: SessionRunner) -> None:
        async with self._planning:
            others = self._admission.others(number)
            try:
                plan = await asyncio.to_thread(self._admission.plan, runner.session.request, others)
            except RequestError as error:
                runner.session.notify("depth", error.text)
                return
            if number in self._runners and not runner.session.parked:
                self._admission.enter(number, plan)
                runner.change_plan(plan)
