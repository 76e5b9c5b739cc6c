"""A service on a separate event loop, and its OpenAPI document turned into requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from tests.service.harness import RunningService

START_S = 60.0
load_all_checks()
CHECKED = [
    check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"
]  # few bytes are an image


@contextlib.contextmanager
def address_of(service: Callable[[], AbstractAsyncContextManager[RunningService]]) -> Iterator[str]:
    """Its HTTP address while it runs in a thread: the requests block."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    found: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        async with service() as served:
            found.append(served.http)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(START_S)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_S)
        loop.close()


def document(address: str) -> schemathesis.BaseSchema:
    """The service's description of itself."""
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def labels(schema: schemathesis.BaseSchema) -> set[str]:
    """METHOD /path of all operations."""
    return {result.ok().label for result in schema.get_all_operations()}


def check_operation(schema: schemathesis.BaseSchema, label: str, mode: GenerationMode) -> None:
    """Requests that keep the document (positive) or break it (negative): the answers keep it every time."""
    method, path = label.split()
    examples = settings().max_examples // 4  # five hundred by night

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(mode))
    def holds(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKED)

    if mode is GenerationMode.POSITIVE or method == "POST":
        holds()
