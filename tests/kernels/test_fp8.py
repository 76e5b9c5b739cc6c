"""FP8 weights and rows: the GEMM's call, its emulation, the kernel that quantises, and who may serve."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from edgeflow.engine.placement import operator_table
from edgeflow.kernels.linear import Fp8
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.kernels.weights import Fp8Weight, dequantised, fp8_rows
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.compare import tolerance
from edgeflow_client.errors import ConfigError
from tests.kernels.deviation import deviation
from tests.kernels.subprocesses import run

CPU = torch.device("cpu")
TABLE = built_in_table().converting("fp8")
BF16 = torch.bfloat16


def scaled_mm_runs_here() -> bool:
    try:
        Fp8(Fp8Weight.of(torch.ones(16, 16, dtype=BF16)), None)(torch.ones(1, 16, dtype=BF16))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def test_numbers_are_rounded_to_the_nearest_of_e4m3():
    x = torch.tensor([[448.0, 1.0, 17.0, 19.0, 0.0011, -30.0], [0.0] * 6, [torch.nan, 1, 2, 3, 4, 5]])
    rows, scale = fp8_rows(x)
    assert scale.tolist()[:2] == [[1.0], [0.0]] and rows[0].tolist() == [448.0, 1.0, 16.0, 20.0, 0.001953125, -30.0]
    assert rows[1].tolist() == [0.0] * 6 and rows[2].isnan().all()


def test_a_row_has_the_scale_of_its_largest_number():
    torch.manual_seed(0)
    x = torch.randn(5, 256) * torch.tensor([1e-4, 1.0, 30.0, 1e3, 1e-9])[:, None]
    back = dequantised(*fp8_rows(x))
    off = (back - x).norm(dim=1) / x.norm(dim=1)
    assert off.max() < 0.04  # half a step of 3 bits is 1/16 at most
    assert torch.allclose(back.abs().amax(1), x.abs().amax(1), rtol=1e-6)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 64, 64), (7, 48, 96), (65, 128, 896)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_emulation_is_as_near_as_fp8_can_be(rows, outputs, inputs, bias):
    case = cases.linear(rows, outputs, inputs, bias=bias)
    emulated, reference = (TABLE.implementation("linear", each).load() for each in ("fp8_emulated", REFERENCE))
    for dtype in (torch.float32, BF16):
        off = deviation(case, emulated, reference, CPU, dtype)
        assert tolerance(case, dtype) < off <= tolerance(case, dtype, "fp8")


@pytest.mark.skipif(not scaled_mm_runs_here(), reason="this build of torch has no FP8 GEMM for CPUs")
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_gemm_gives_what_the_emulation_gives(rows):
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 96).to(BF16), torch.randn(48).to(BF16)
    x, eight = torch.randn(rows, 96).to(BF16), Fp8Weight.of(weight)
    exact = dequantised(*fp8_rows(x)) @ dequantised(*fp8_rows(weight)).t()
    for made_bias in (None, bias):
        wanted = exact + (0 if made_bias is None else made_bias)
        found = Fp8(eight, made_bias)(x)
        assert found.dtype == BF16 and ((found - wanted).norm() / wanted.norm()).item() < 5e-3


def test_cuda_takes_the_call():
    """torch's own checks of layout, sizes and scales on tensors of a GPU that is not here."""
    with FakeTensorMode():
        weight, x = (torch.empty(count, 96, dtype=BF16, device="cuda") for count in (48, 7))
        bias = torch.empty(48, dtype=BF16, device="cuda")
        eight = Fp8Weight.of(weight)
        assert Fp8(eight, bias)(x).shape == (7, 48)
        made = Fp8(eight, None)
        made._scale = made._scale.to(BF16)
        with pytest.raises(RuntimeError, match="must be float"):
            made(x)


def test_fp8_weights_take_half_the_memory():
    weight = torch.randn(64, 256).to(BF16)
    assert Fp8(Fp8Weight.of(weight), None).nbytes == weight.nbytes // 2 + 64 * 4


@pytest.mark.parametrize(
    ("hardware", "dtype", "shape", "serves", "objection"),
    [
        (Hardware("cuda", 89), BF16, "m=1|n=64|e=64", "fp8", ""),
        (Hardware("cuda", 90), BF16, "", "fp8", ""),
        (Hardware("cuda", 90), BF16, "m=1|n=65|e=64", "gemm", "fp8: n no multiple of 16"),
        (Hardware("cuda", 87), BF16, "", "gemm", "fp8: needs sm_89"),
        (Hardware("cuda", 90), torch.float16, "", "gemm", "fp8: not for float16"),
        (Hardware("cpu"), torch.float32, "", "fp8_emulated", ""),
    ],
)
def test_fp8_serves_only_on_devices_and_sizes_that_it_takes(hardware, dtype, shape, serves, objection):
    chosen = TABLE.choose(OperatorKey(op_name="linear", shape_sig=shape), hardware, dtype)
    assert chosen.implementation.impl_id == serves
    assert [each for each in chosen.passed_over if each.startswith("fp8:")] == [objection] * bool(objection)
    plain = built_in_table().choose(OperatorKey(op_name="linear", shape_sig=shape), hardware, dtype)
    assert plain.implementation.weight == "float"


def test_weights_that_nothing_here_computes_with_are_rejected(monkeypatch):
    monkeypatch.setattr(Hardware, "of", classmethod(lambda cls, device: cls("cuda", 87)))
    with pytest.raises(ConfigError, match=r"chat\.weights: fp8 cannot be served here: fp8: needs sm_89"):
        operator_table(None, "fp8", torch.device("cuda"), BF16, section="chat.")


def test_the_kernel_equals_the_reference():
    """Run by Triton's interpreter, in a process of its own."""
    results = run("interpreted_fp8.py", interpret=True)
    assert len(results) > 20 and [result for result in results if result["off"]] == []
