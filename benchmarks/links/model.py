"""Emulated links: their delays, losses, rates and stalls, and when a packet that enters one leaves it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from random import Random

MS_NS = 1_000_000
ROOMY_BYTES = 1 << 20
WIFI_S = 120.0
"""Length of the Wi-Fi trace, after which it begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The properties of a link for a while, in each direction."""

    delay_ms: float = 0.0
    """From one end to the other; a round trip takes twice as long."""
    jitter_ms: float = 0.0
    """Packets take up to so much longer, evenly distributed; they stay in order."""
    loss: float = 0.0
    """Share of the packets that are lost, each by itself."""
    rate_mbit: float = 0.0
    """0 = unlimited."""
    stalled: bool = False
    """Nothing leaves until the next state."""
    for_ms: float = 0.0
    """Duration, in a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedLink:
    """A link by name. What exceeds its queue is lost."""

    name: str
    trace: tuple[LinkState, ...]
    """One state that lasts, or several that repeat."""
    queue_bytes: int = ROOMY_BYTES
    """Packets that wait in each direction."""


def wifi_trace(random: Random) -> tuple[LinkState, ...]:
    """A trace of a Wi-Fi link at its edge: a model, not a recording.

    A chain of Gilbert and Elliott: good states of 3 s on average (3 ms, 40 Mbit/s) and bad ones of 0.6 s (10 ms, up to
    15 ms more, 3 % loss, 4 Mbit/s). Every other bad state ends with a stall of 50 to 400 ms, as when a robot changes to
    another access point.
    """
    states: list[LinkState] = []
    while sum(state.for_ms for state in states) < 1000 * WIFI_S:
        good_ms, bad_ms = random.expovariate(1 / 3000), random.expovariate(1 / 600)
        states.append(LinkState(delay_ms=3, jitter_ms=2, rate_mbit=40, for_ms=good_ms))
        states.append(LinkState(delay_ms=10, jitter_ms=15, loss=0.03, rate_mbit=4, for_ms=bad_ms))
        if random.random() < 0.5:
            states.append(LinkState(delay_ms=3, stalled=True, for_ms=random.uniform(50, 400)))
    return tuple(states)


def _one(name: str, *, queue_bytes: int = ROOMY_BYTES, **state: float) -> EmulatedLink:
    return EmulatedLink(name=name, trace=(LinkState(**state),), queue_bytes=queue_bytes)  # type: ignore[arg-type]


LINKS = (
    _one("no delay"),
    _one("20 ms", delay_ms=20),
    _one("100 ms", delay_ms=100),
    _one("20 ms, jitter of 20 ms", delay_ms=20, jitter_ms=20),
    _one("20 ms, 1 % loss", delay_ms=20, loss=0.01),
    _one("20 ms, 5 Mbit/s", delay_ms=20, rate_mbit=5, queue_bytes=64 << 10),
    EmulatedLink(name="Wi-Fi", trace=wifi_trace(Random(1)), queue_bytes=256 << 10),
)


class LinkDirection:
    """One direction of a link; packets leave in the order in which they enter. Callers pass the time."""

    def __init__(self, link: EmulatedLink, random: Random) -> None:
        self._link = link
        self._random = random
        self._ends_ns = list(accumulate(state.for_ms * MS_NS for state in link.trace))
        self._free_ns = self._last_ns = 0.0
        self._queued: deque[tuple[float, int]] = deque()  # when they are out of the queue, and their bytes
        self._queued_bytes = 0

    def leaves_ns(self, now_ns: int, size: int) -> float | None:
        """When a packet of so many bytes that enters now leaves; None = it is lost."""
        state, ends_ns = self._state(now_ns)
        while self._queued and self._queued[0][0] <= now_ns:
            self._queued_bytes -= self._queued.popleft()[1]
        if self._queued_bytes + size > self._link.queue_bytes or self._random.random() < state.loss:
            return None
        begins_ns = max(now_ns, self._free_ns, ends_ns if state.stalled else 0.0)
        self._free_ns = begins_ns + (8000 * size / state.rate_mbit if state.rate_mbit else 0.0)
        self._queued.append((self._free_ns, size))
        self._queued_bytes += size
        delay_ms = state.delay_ms + state.jitter_ms * self._random.random()
        self._last_ns = max(self._last_ns, self._free_ns + delay_ms * MS_NS)
        return self._last_ns

    def _state(self, now_ns: int) -> tuple[LinkState, float]:
        """The present state, and when it ends."""
        trace = self._link.trace
        if len(trace) == 1:
            return trace[0], 0.0
        begun_ns = now_ns - now_ns % self._ends_ns[-1]
        place = min(bisect_right(self._ends_ns, now_ns - begun_ns), len(trace) - 1)
        return trace[place], begun_ns + self._ends_ns[place]
