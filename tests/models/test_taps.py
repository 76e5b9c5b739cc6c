"""The inputs of layers that a pass keeps, against decoders that end before these layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow.models.network import Taps
from tests.models.test_llama import SIZE, VARIANTS, random_weights

CPU = torch.device("cpu")
CONFIG = replace(VARIANTS["gqa"], num_hidden_layers=5)
SPANS = [Span(3, 0, 9), Span(0, 4, 1), Span(2, 3, 5), Span(1, 7, 1)]


def decoder(config: LlamaConfig = CONFIG) -> LlamaDecoder:
    return LlamaDecoder(config, Weights.of(random_weights(CONFIG), torch.float32, CPU))


def rows() -> torch.Tensor:
    return torch.randn(16, SIZE["hidden_size"], generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("layers", [(0, 1, 4), (4, 2, 3), (2,)])
@pytest.mark.parametrize("samples", [None, (0, 1, 5, 0), (0, 0, 0, 0), (9, 1, 5, 1)])
@torch.inference_mode()
def test_features_are_what_a_shorter_decoder_returns(layers: tuple[int, ...], samples):
    model, taps, hidden = decoder(), Taps(layers), rows()
    plain = model.kv_slots(4, 24), model.kv_slots(4, 24)
    layout = PackedLayout.of(SPANS, CPU, samples=samples)
    for kv in plain:
        kv.data.zero_()
    expected = [hidden if layer == 0 else shorter(layer, layout) for layer in layers]
    found = model.forward(hidden, layout, plain[0], taps)
    assert torch.equal(taps.features, torch.cat(expected, 1))
    sampled = model.forward_sampled(hidden, layout, plain[1], taps)
    assert torch.equal(taps.features, torch.cat(expected, 1))
    assert torch.equal(hidden, rows())
    kv = model.kv_slots(4, 24)
    kv.data.zero_()
    assert torch.equal(model.forward(hidden, layout, kv), found)
    assert len(sampled) == len(layout.sampled_rows)


def shorter(layers: int, layout: PackedLayout) -> torch.Tensor:
    """The output of the first layers alone."""
    model = decoder(replace(CONFIG, num_hidden_layers=layers))
    kv = model.kv_slots(4, 24)
    kv.data.zero_()
    return model.forward(rows(), layout, kv)


@torch.inference_mode()
def test_features_are_those_of_the_latest_pass():
    model, taps = decoder(), Taps((1, 3))
    for count in (6, 2):
        layout = PackedLayout.of([Span(0, 0, count)], CPU)
        model.forward(rows()[:count], layout, model.kv_slots(1, 16), taps)
        earlier = taps.features
        assert len(earlier) == count


def test_taps_are_layers_of_the_model():
    for layers in ((), (1, 1), (-1, 2)):
        with pytest.raises(ValueError, match="taps must name layers, each once"):
            Taps(layers)
    model, layout = decoder(), PackedLayout.of(SPANS, CPU)
    for forward in (model.forward, model.forward_sampled):
        with pytest.raises(ValueError, match="taps name layer 5, but the model has 5 layers, the first is 0"):
            forward(rows(), layout, model.kv_slots(4, 24), Taps((2, 5)))
