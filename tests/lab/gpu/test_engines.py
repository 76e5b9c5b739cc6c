"""The engines that the suite measures are those of the service."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.policy import Footprint
from edgeflow.lab.gpu.section_order import Order
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.engines import engine_of, policy_of
from edgeflow.worker.build import kv_need
from tests.engine.recorded_graphs import record


@pytest.fixture
def setting(tmp_path: Path) -> SectionSetting:
    known = {"device": "cpu", "size": "tiny", "frames": 10, "out": str(tmp_path)}
    return SectionSetting.of(Order(section="", ends=monotonic() + 600, **known), lambda _: None)


def test_a_slot_has_the_positions_that_the_service_gives_it(setting):
    policy = policy_of(setting, setting.size)
    engine = engine_of(policy, setting.size, setting, graphs=True, record=record)
    positions = policy.fixed_rows + policy.K
    footprint = Footprint(decoder=0, other=0, slots=policy.K, positions=positions, row_bytes=1)
    need = kv_need(ServiceConfig(), footprint, setting.device)
    assert (engine.kv.capacity, engine.record) == (need.capacity, record)
    assert engine.capacity == policy.fixed_rows + ServiceConfig().max_prompt_tokens + policy.K
