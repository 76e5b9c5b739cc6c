"""Run by test_triton.py with TRITON_INTERPRET=1: every kernel on a CPU against its reference, a JSON line a run.

Attention is slow to interpret. In float32 it runs every case of dense slots, every other one of slots in fewer bits,
and every sixth one of slots in FP8, as they have the kernel of those in int8. A half type runs every twelfth case, and
the other one the cases between. With --every, as each night: all cases in all types.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import torch

from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.trials.cases import TrialCase
from edgeflow.lab.trials.catalogue import small_cases
from edgeflow.lab.trials.compare import tolerance
from tests.kernels.deviation import deviation

CPU = torch.device("cpu")
SPARSE = {"packed_attention"}
EVERY = {"dense": 1, "int8": 2, "int4": 2, "fp8": 6}
"""How many cases there are for one that runs in float32, by the format of slots."""
FIRST = {torch.float16: 0, torch.bfloat16: 6}
"""Of every twelve cases, the one that a half type runs."""
TWIN = "fp8"


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    every = "--every" in sys.argv
    for op_name in [each for each in sys.argv[1:] if each != "--every"]:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            run(op_name, dtype, every=every)
        run_choices(op_name, every=every)


def proofs(op_name: str) -> list[TrialCase]:
    """The problems of an operator, with weights and KV of the formats that its kernels take."""
    table = built_in_table()
    found = small_cases(op_name, weight=table.implementation(op_name, "triton").weight or FLOAT)
    return [case for case in found if "triton" in table.candidates(op_name, case.kv)]


def run(op_name: str, dtype: torch.dtype, *, every: bool) -> None:
    places = Counter[str]()
    for index, case in enumerate(proofs(op_name)):
        if every or op_name not in SPARSE or chosen(places[case.kv], dtype, case.kv):
            tell(op_name, dtype, index, {})
        places[case.kv] += 1


def chosen(place: int, dtype: torch.dtype, kv: str) -> bool:
    if dtype == torch.float32:
        return place % EVERY[kv] == 0
    return place % 12 == FIRST[dtype]


def run_choices(op_name: str, *, every: bool) -> None:
    """Every other value of every parameter, on a case or two."""
    table, kv_of = built_in_table(), [case.kv for case in proofs(op_name)]
    for kv in dict.fromkeys(each for each in kv_of if each != TWIN):
        mine = [index for index, each in enumerate(kv_of) if each == kv]
        for name, values in table.implementation(op_name, "triton", kv).choices.items():
            if name not in ("num_warps", "num_stages"):  # the interpreter knows neither
                for value in values[1:]:
                    for index in mine[1 :: max(1, len(mine) // 2)][: None if every else 1]:
                        tell(op_name, torch.float32, index, {name: value})


def tell(op_name: str, dtype: torch.dtype, index: int, params: dict[str, int]) -> None:
    table, case = built_in_table(), proofs(op_name)[index]
    candidate = table.implementation(op_name, "triton", case.kv)
    kernel = candidate.load()
    reference = table.implementation(op_name, REFERENCE, case.kv).load()
    found = deviation(case, lambda *given: kernel(*given, **params), reference, CPU, dtype)
    name = str(dtype).removeprefix("torch.")
    line = {"op": op_name, "kv": case.kv, "dtype": name, "case": index, "params": params, "deviation": found}
    print(json.dumps(line | {"ok": found <= tolerance(case, dtype, candidate.weight, candidate.deviation)}), flush=True)


if __name__ == "__main__":
    main()
