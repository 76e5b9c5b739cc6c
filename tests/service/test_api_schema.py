"""The HTTP API against its own OpenAPI document: all operations, all checks, over a real socket."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from tests.service.harness import JPEG, serving

load_all_checks()
CHECKED = [
    check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"
]  # few bytes are an image
ANY_TEXT = st.text(st.characters())  # lone surrogates too, which JSON can say and Protocol Buffers cannot
OPERATIONS = ["GET /healthz", "GET /readyz", "GET /metrics", "GET /v1/models", "POST /v1/act"]


@pytest.fixture(scope="module")
def address(checkpoint: Path) -> Iterator[str]:
    """A service on a loop of its own: the checks block."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    found: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        async with serving(checkpoint) as served:
            found.append(served.http)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


@pytest.fixture(scope="module")
def api_schema(address: str) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_operation_is_known(api_schema: schemathesis.BaseSchema):
    assert {result.ok().label for result in api_schema.get_all_operations()} == set(OPERATIONS)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_operation_keeps_the_document(api_schema: schemathesis.BaseSchema, label: str, mode: GenerationMode):
    method, path = label.split()
    operation = api_schema[path][method]

    @settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(mode))
    def holds(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKED)

    if mode is GenerationMode.POSITIVE or method == "POST":
        holds()


@settings(deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {"image": st.just(base64.b64encode(JPEG).decode()), "instruction": ANY_TEXT | st.just("go")},
        optional={
            "proprio": st.dictionaries(ANY_TEXT, st.floats() | st.integers()),
            "unnorm_key": ANY_TEXT,
            "model": ANY_TEXT,
            "mode": st.sampled_from(["", "serial", "pipelined", "auto"]),
            "width": st.integers(),
            "height": st.integers(),
        },
    )
)
def test_a_good_image_with_anything_beside_it(api_schema: schemathesis.BaseSchema, body: dict[str, object]):
    operation = api_schema["/v1/act"]["POST"]
    case = operation.Case(body=None, media_type="application/json")
    response = case.call(data=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
    case.validate_response(response, checks=[check for check in CHECKED if "negative" not in check.__name__])
