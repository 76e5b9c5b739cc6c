"""The chat routes against the OpenAPI document, a tiny model behind them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import schemathesis
from schemathesis.generation import GenerationMode

from tests.fuzz.api import address_of, check_operation, document
from tests.service.chat.workers import Loaded, chatting
from tests.service.harness import RunningService
from tests.service.http.test_api_schema import OF_CHAT


@pytest.fixture(scope="module")
def api(text_model: Loaded) -> Iterator[schemathesis.BaseSchema]:
    @contextlib.asynccontextmanager
    async def service() -> AsyncIterator[RunningService]:
        async with chatting(text_model) as (_, served):
            yield served

    with address_of(service) as address:
        yield document(address)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", sorted(OF_CHAT))
def test_every_operation_keeps_the_document(api: schemathesis.BaseSchema, label: str, mode: GenerationMode):
    check_operation(api, label, mode)
