"""The HTTP API of the control plane against its own OpenAPI document: all operations, all checks, a real socket."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from tests.fuzz.api import CHECKED, address_of, check_operation, document, labels
from tests.service.harness import JPEG, serving

OPERATIONS = {
    "GET /live",
    "GET /ready",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /events/images/{session}/{camera}",
    "POST /v1/act",
    "GET /admin/v1/sessions",
    "POST /admin/v1/sessions/{session}/hold",
    "POST /admin/v1/sessions/{session}/mode",
}
OF_OPERATORS = {  # as those two
    "POST /admin/v1/sessions/{session}/resume",
    "POST /admin/v1/sessions/{session}/instruct",
    "POST /admin/v1/sessions/{session}/end",
    "GET /admin/v1/demo-robot",
    "POST /admin/v1/demo-robot",
    "DELETE /admin/v1/demo-robot",
}
STREAMS = {"GET /events"}  # an answer without end: tests/service/gateway/test_events.py
OF_CHAT = {  # where a chat model is tested
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /tokenize",
    "GET /admin/v1/prefixes",
    "PUT /admin/v1/prefixes/{slot}",
    "DELETE /admin/v1/prefixes/{slot}",
}
ANY_TEXT = st.text(st.characters())  # lone surrogates too, which JSON can say and Protocol Buffers cannot


@pytest.fixture(scope="module")
def api(checkpoint: Path) -> Iterator[schemathesis.BaseSchema]:
    with address_of(lambda: serving(checkpoint)) as address:
        yield document(address)


def test_every_operation_is_known(api: schemathesis.BaseSchema):
    assert labels(api) == OPERATIONS | STREAMS | OF_CHAT | OF_OPERATORS


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_every_operation_keeps_the_document(api: schemathesis.BaseSchema, label: str, mode: GenerationMode):
    check_operation(api, label, mode)


@settings(deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {"image": st.just(base64.b64encode(JPEG).decode()), "instruction": ANY_TEXT | st.just("go")},
        optional={
            "proprio": st.dictionaries(ANY_TEXT, st.floats() | st.integers()),
            "unnorm_key": ANY_TEXT,
            "model": ANY_TEXT,
            "mode": st.sampled_from(["", "serial", "pipelined", "speculative", "auto"]),
            "width": st.integers(),
            "height": st.integers(),
        },
    )
)
def test_a_good_image_with_anything_beside_it(api: schemathesis.BaseSchema, body: dict[str, object]):
    case = api["/v1/act"]["POST"].Case(body=None, media_type="application/json")
    response = case.call(data=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
    case.validate_response(response, checks=[check for check in CHECKED if "negative" not in check.__name__])
