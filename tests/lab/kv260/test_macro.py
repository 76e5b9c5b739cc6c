"""AWQ_MACRO: word for word against a naive packer, and back again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.lab.kv260 import macro
from edgeflow.lab.kv260.macro import GemmWords, MacroShape
from edgeflow_client.errors import CheckpointError
from tests.lab.kv260.linears import naive_strips, random_linear, random_words

shapes = st.tuples(st.integers(1, 9), st.integers(1, 3), st.sampled_from(macro.GROUPS), st.integers(0, 2**32 - 1))


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_unpacking_gives_the_same_words(sizes):
    blocks, groups, group, seed = sizes
    gemm = random_words(8 * blocks, groups * group, group, seed)
    macros = macro.pack(gemm)
    channels = macro.split(macros)
    again = macro.unpack(macro.join(channels))
    assert again.qweight.tobytes() == gemm.qweight.tobytes()
    assert again.qzeros.tobytes() == gemm.qzeros.tobytes()
    assert again.scales.tobytes() == gemm.scales.tobytes()
    shape = gemm.shape()
    assert [len(channel.tobytes()) for channel in channels] == [shape.channel_bytes(c) for c in range(4)]
    assert max(map(len, channels)) - min(map(len, channels)) <= 1


@pytest.mark.parametrize("group", macro.GROUPS)
def test_strips_are_those_of_the_specification(group):
    linear = random_linear(outputs=24, inputs=2 * group, group=group, seed=group)
    macros = macro.pack(linear.gemm())
    strips = naive_strips(linear, block=2, index=1)
    assert len(strips) == 2 + group // 4
    assert macros[2, 1].astype("<u4").tobytes() == b"".join(strip.to_bytes(16, "little") for strip in strips)


def test_a_macro_of_the_paper_takes_four_and_a_half_bits_per_weight():
    shape = MacroShape(896, 4864, 64)
    assert 4 * shape.words == 18 * 16
    assert 8 * shape.nbytes / (896 * 4864) == 4.5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((12, 64, 64), "outputs must be a multiple of 8, found 12"),
        ((8, 96, 64), "inputs must be a multiple of 64, found 96"),
        ((0, 64, 64), "outputs must be a multiple of 8, found 0"),
        ((8, 64, 16), "groups of 32, 64, 128 inputs, found 16"),
    ],
)
def test_what_macros_cannot_hold_is_rejected(sizes, message):
    with pytest.raises(CheckpointError, match=f"q_proj: .*{message}"):
        MacroShape(*sizes, "q_proj")


def test_arrays_that_do_not_fit_are_rejected_by_name():
    gemm = random_words(16, 64, 32, 0)
    with pytest.raises(CheckpointError, match=r"up\.qzeros: expected int32 \[2, 2\], found int32 \[1, 2\]"):
        macro.pack(GemmWords(gemm.qweight, gemm.qzeros[:1], gemm.scales), "up")
    with pytest.raises(CheckpointError, match=r"up\.scales: expected float16 .* found float32"):
        macro.pack(GemmWords(gemm.qweight, gemm.qzeros, gemm.scales.astype(np.float32)), "up")
    with pytest.raises(CheckpointError, match=r"up\.qweight: expected int32 \[64, 2\], found int32 \[64, 1\]"):
        macro.pack(GemmWords(gemm.qweight[:, :1], gemm.qzeros, gemm.scales), "up")


def test_padding_that_is_not_zero_is_rejected():
    macros = macro.pack(random_words(8, 32, 32, 0))
    macros[0, 0, 6] = 1
    with pytest.raises(CheckpointError, match="up: the padding"):
        macro.unpack(macros, "up")
