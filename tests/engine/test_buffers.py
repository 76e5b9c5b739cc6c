"""Tensors in one buffer of bytes: what is staged is what is read, each at a multiple of 16 bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgeflow.engine.buffers import BufferFields

DTYPES = (torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.long)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def made(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)


@given(fields=st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=5), turned=st.booleans())
def test_views_are_what_was_staged(fields: list[tuple[torch.dtype, tuple[int, ...]]], turned: bool):
    tensors = [made(*each) for each in fields]
    if turned:
        tensors = [each.mT if each.dim() == 3 else each for each in tensors]
    found = BufferFields.of(tensors)
    pieces = found.pieces(tensors)
    buffer = torch.cat([torch.empty(0, dtype=torch.uint8), *pieces])
    assert len(buffer) == found.nbytes and found.nbytes % 16 == 0
    assert all(piece.dim() == 1 and len(piece) for piece in pieces)
    for view, tensor in zip(found.views(buffer), tensors, strict=True):
        assert torch.equal(view, tensor) and view.dtype == tensor.dtype
        assert view.storage_offset() * view.element_size() % 16 == 0
        assert not view.numel() or view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


@pytest.mark.parametrize("wrong", [torch.zeros(2, 2), torch.zeros(2, 3, dtype=torch.long)])
def test_a_tensor_that_is_not_of_its_field_is_rejected(wrong: Tensor):
    fields = BufferFields(((torch.float32, (2, 3)),))
    with pytest.raises(ValueError, match=r"for a field of torch.float32 \[2, 3\]"):
        fields.pieces([wrong])
    assert len(fields.pieces([torch.zeros(6)])) == 2, "any shape of as many numbers"
