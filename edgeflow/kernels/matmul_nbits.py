"""LINEAR with ONNX Runtime's MatMulNBits: weights of 4 bits, rows in 8 bits. CPU only; a candidate for the tuner."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from edgeflow.kernels.awq import AwqWeight

DOMAIN = "com.microsoft"
ROWS_IN_8_BITS = 4  # accuracy_level of the operator
OPSET, IR_VERSION = 21, 10  # that every release with the operator reads


class MatMulNBits:
    """A session with one node. Weights [N, E / G, G / 2], two neighbouring inputs in a byte, the first one low."""

    def __init__(self, weight: AwqWeight, bias: Tensor | None) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = _model(weight)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._bias = bias
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        (found,) = self._session.run(None, {"x": x.float().contiguous().numpy()})
        out: Tensor = torch.from_numpy(found).to(x.dtype)
        return out if self._bias is None else out.add_(self._bias)


def _model(weight: AwqWeight) -> onnx.ModelProto:
    (outputs, inputs), group = weight.shape, weight.group
    tensors = {
        "codes": _pairs(weight.q).view(outputs, -1, group // 2).numpy(),
        "scales": weight.scales.float().flatten().numpy(),
        "zeros": _pairs(_even(weight.zeros)).flatten().numpy(),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["x", *tensors],
        ["out"],
        domain=DOMAIN,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=group,
        accuracy_level=ROWS_IN_8_BITS,
    )
    graph = helper.make_graph(
        [node],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", outputs])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in tensors.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _pairs(codes: Tensor) -> Tensor:
    """[n, k] → [n, k / 2]: two codes in a byte, the first one low"""
    return (codes[:, ::2] | codes[:, 1::2] << 4).contiguous()


def _even(zeros: Tensor) -> Tensor:
    """Another column of zeros where the number of groups is odd."""
    return torch.cat([zeros, zeros.new_zeros(len(zeros), 1)], 1) if zeros.shape[1] % 2 else zeros
