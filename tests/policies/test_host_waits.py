"""The host never waits for the device while a frame is prepared or a pass of one-pass policies is launched.

`meta` stands for the device. Pixels and states enter it by `uploaded`, which pins them for CUDA, or from memory that is
pinned for them; indices, which are pinned where they are made, without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.kv import layout
from edgeflow.kernels.kv.layout import uploaded
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.policies.act.family import ACT
from edgeflow.policies.openvla.preprocess import DevicePreprocessor
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.scheduler.plan import Pass, Segment
from tests.engine.recorded_graphs import READS_ON_THE_HOST
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft

DEVICE = torch.device("meta")
TABLE = built_in_table().forcing(packed_attention="masked", linear="gemm")
USES = ("kernels.kv.layout", "policies.tensors", "policies.act.policy")


class Moves(TorchDispatchMode):
    """Fails where the host reads the device, or gives it data in another way than without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.uploading = False
        self.uploads = 0
        for use in USES:
            monkeypatch.setattr(f"edgeflow.{use}.uploaded", self._noted(uploaded))
        pinned = self._noted(DevicePreprocessor.__call__)  # fills a tensor that it has pinned
        monkeypatch.setattr(DevicePreprocessor, "__call__", lambda *given: pinned(*given))

    def _noted(self, upload: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(*given: Any) -> Tensor:
            self.uploading, self.uploads = True, self.uploads + 1
            try:
                return upload(*given)
            finally:
                self.uploading = False

        return noted

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = function.overloadpacket.__name__, kwargs or {}
        given = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
        there = any(each.is_meta for each in given)
        assert not (there and name.startswith(READS_ON_THE_HOST)), f"{name} waits for the device"
        result = function(*args, **options)
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if any(each.is_meta for each in (*given, *made)) and not all(each.is_meta for each in given if each.dim()):
            assert name in ("to", "_to_copy") and options.get("non_blocking"), f"{name} waits for a copy"
            assert self.uploading or made[0].dtype == torch.int64, f"{name} of pageable memory"
        return result


@pytest.mark.parametrize("preprocess_on_device", [True, False])
@pytest.mark.parametrize("family", ["act", "openvla_oft", "openvla_oft tokens"])
def test_frames_and_passes_wait_for_nothing(family: str, preprocess_on_device: bool, tmp_path, monkeypatch):
    if family == "act":
        entry, settings = ACT, {"control_rate_hz": 50}
        write_checkpoint(tmp_path / "model")
    else:
        entry, settings = OPENVLA_OFT, TinyOFT().settings(action_head=family == "openvla_oft")
        write_oft(tmp_path / "model")
    published = entry.load(tmp_path / "model", settings, LoadOptions())
    options = {"dtype": torch.float32, "preprocess_on_device": preprocess_on_device}
    policy = published.load(Placement(device=DEVICE, table=TABLE, **options))
    contract = entry.prepare(policy, EngineOptions(sessions=2, text_rows=64, table=TABLE)).contract
    seen = list(sample_observations(policy.inputs, 2, "go", 32))
    planned = Pass(0, tuple(Segment(sequence=index, slot=0, start=0, length=1, stage=0) for index in range(2)))

    def run() -> Tensor:
        """As an executor does, but for the pinning of host memory."""
        prompts = dict(enumerate(policy.prepare(each) for each in seen))
        shape = contract.shape(planned, prompts, waits=False)
        pieces = [
            layout.uploaded(each, DEVICE) if each.is_cpu else each for each in contract.stage(planned, prompts, shape)
        ]
        return contract.program(torch.cat(pieces), shape, planned)()

    with torch.inference_mode():
        run()  # what is made once, at the first frame of a size
        with Moves(monkeypatch) as moves:
            found = run()
    assert found.is_meta and len(found) == 2
    assert moves.uploads > 2


def test_a_wait_is_seen(monkeypatch):
    """That the test above can fail."""
    with Moves(monkeypatch):
        for copy in (
            lambda: torch.ones(2).to(DEVICE),
            lambda: torch.ones(2).to(DEVICE, non_blocking=True),
            lambda: torch.ones(2, device=DEVICE).copy_(torch.ones(2)),
            lambda: torch.ones(2, device=DEVICE)[0].item(),
        ):
            with pytest.raises(AssertionError):
                copy()
