"""Fields with values that no schema would think of: answered or rejected, never a bug."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.api import address_of, document
from tests.service.chat.test_answers import ASKED, CHAT
from tests.service.chat.workers import Loaded, chatting
from tests.service.harness import RunningService

ANY_TEXT = st.text(st.characters(exclude_categories=()))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def api(text_model: Loaded) -> Iterator[schemathesis.BaseSchema]:
    @contextlib.asynccontextmanager
    async def service() -> AsyncIterator[RunningService]:
        async with chatting(text_model, chat__max_tokens=2, chat__max_tokens_limit=4) as (_, served):
            yield served

    with address_of(service) as address:
        yield document(address)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {"messages": st.just(ASKED["messages"]) | st.lists(ANY_JSON, max_size=2)},
        optional={
            "model": ANY_TEXT,
            "slot": ANY_TEXT,
            "stop": ANY_JSON,
            "user": ANY_TEXT,
            "tools": ANY_JSON,
            "tool_choice": ANY_JSON,
            "response_format": ANY_JSON
            | st.fixed_dictionaries(
                {
                    "type": st.just("json_schema"),
                    "json_schema": st.fixed_dictionaries(
                        {"name": st.just("a"), "schema": st.dictionaries(ANY_TEXT, ANY_JSON)}
                    ),
                }
            ),
            "temperature": st.floats() | st.integers(),
            "seed": st.integers(),
            "stream": st.booleans(),
        },
    )
)
def test_anything_is_answered_or_rejected(api: schemathesis.BaseSchema, body: dict[str, object]):
    case = api[CHAT]["POST"].Case(body=None, media_type="application/json")
    response = case.call(data=json.dumps({**body, "max_tokens": 2}), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
