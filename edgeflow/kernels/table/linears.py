"""The implementations of `linear`, by the format of the weight that they are made for."""

from __future__ import annotations

from dataclasses import replace

import torch

from edgeflow.kernels import fp8_linear, linear
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.native import library as native_library
from edgeflow.kernels.native import linear as native
from edgeflow.kernels.quantised import torch_int4, torch_int8
from edgeflow.kernels.table.implementations import (
    FLOAT_DTYPES,
    FLOATS,
    REFERENCE,
    STORED,
    Implementation,
    triton_kernel,
)
from edgeflow.kernels.weights import FLOAT

ROWS_OF_8_BITS, ROWS_BY_GROUP = 1e-2, 1.4e-2
"""Deviation of products whose rows are in 8 bits with a scale per 32 inputs, or per group of up to 128."""

LINEARS = (
    Implementation(op_name="linear", impl_id=REFERENCE, function=linear.Reference),
    Implementation(op_name="linear", impl_id="gemm", function=linear.Gemm, weight=FLOAT),
    Implementation(
        op_name="linear",
        impl_id="packed",
        function=linear.Packed,
        devices=frozenset({"cpu"}),
        dtypes=linear.packed_dtypes(),
        weight=FLOAT,
        absent=linear.no_onednn(),
    ),
    Implementation(
        op_name="linear",
        impl_id="matmul_nbits",
        function="edgeflow.kernels.quantised.matmul_nbits:MatMulNBits",
        devices=frozenset({"cpu"}),
        needs=("onnxruntime", "onnx"),
        weight=AWQ,
        deviation=ROWS_BY_GROUP,
    ),
    Implementation(
        op_name="linear",
        impl_id="dequantised",
        function=linear.Dequantised,
        devices=frozenset({"cpu", "cuda"}),
        weight=AWQ,
    ),
    replace(
        triton_kernel(
            "linear",
            "awq",
            {},
            block_m=(0, 16, 32, 64),
            block_n=(128, 64),
            splits=(0, 1, 4),
            num_warps=(0, 4, 8),
            num_stages=(4, 3),
        ),
        dtypes=FLOAT_DTYPES - {torch.float32},
        multiples={"n": 8, "e": 32},
        weight=AWQ,
    ),
    Implementation(
        op_name="linear",
        impl_id="torch_int4",
        function=torch_int4.TorchInt4,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({torch.bfloat16}),  # others have no fast product in torch
        multiples={"n": 16},
        weight=AWQ,
        absent=torch_int4.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="native_int4",
        function=native.Int4,
        devices=frozenset({"cpu"}),
        dtypes=frozenset(native_library.KINDS),
        weight=AWQ,
        deviation=ROWS_OF_8_BITS,
        absent=native_library.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="torch_int8",
        function=torch_int8.TorchInt8,
        devices=frozenset({"cpu"}),
        weight="int8",
        made_from=STORED,
        absent=torch_int8.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="native_int8",
        function=native.Int8,
        devices=frozenset({"cpu"}),
        dtypes=frozenset(native_library.KINDS),
        multiples={"e": native.BLOCK},
        weight="int8",
        made_from=STORED,
        deviation=ROWS_OF_8_BITS,
        absent=native_library.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="int8",
        function=linear.Int8,
        devices=frozenset({"cpu"}),
        limits={"m": 1},
        weight="int8",
        made_from=FLOATS,
        stage="decode",
    ),
    Implementation(
        op_name="linear",
        impl_id="fp8_emulated",
        function=fp8_linear.Emulated,
        devices=frozenset({"cpu"}),
        weight="fp8",
    ),
    Implementation(
        op_name="linear",
        impl_id="fp8",
        function="edgeflow.kernels.triton.fp8:linear",
        devices=frozenset({"cuda"}),
        dtypes=frozenset({torch.bfloat16}),
        least_arch=89,
        needs=("triton",),
        limits={"e": 1 << 16},
        multiples={"n": 16, "e": 16},
        weight="fp8",
        absent=fp8_linear.missing(),
    ),
    Implementation(
        op_name="linear",
        impl_id="cublasLt",
        function="",
        devices=frozenset({"cuda"}),
        choices={"algo_index": (0,)},
        weight=FLOAT,
        absent="edgeflow has no binding of cuBLASLt",
    ),
)
