import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from edgeflow.lab.demo.flow_training.layers import FlowSize, pixel_shuffle
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from tests.lab.demo.flow_training.reference import read_json, read_network
from tests.oracles import ORACLES

BUNDLE = "smolvla-tiny"
SMALL = FlowSize(
    image=32, patch=8, vision_width=32, vision_heads=2, scale_factor=2, width=48, layers=4, heads=4, head_dim=8
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return TrainedFlowNetwork(SMALL).eval()


def prefix_of(network, ids=((7, 8, 9),), state=0.5, valid=None):
    frames = torch.randint(0, 256, (len(ids), 32, 32, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    states = torch.full((len(ids), SMALL.state), state)
    return network.prefix(network.image_tokens(frames), torch.tensor(ids), states, valid)


def noisy(draws, seed=2):
    return torch.randn(1, draws, SMALL.chunk, SMALL.action, generator=torch.Generator().manual_seed(seed))


@pytest.mark.oracle(BUNDLE)
@pytest.mark.parametrize("case", ["case0", "case1", "case2"])
def test_the_network_computes_what_the_published_one_recorded(case):
    network, recorded = read_network(ORACLES / BUNDLE), load_file(ORACLES / BUNDLE / "expected.safetensors")
    vlm, size = network.vlm_with_expert.vlm.model, network.size
    given = {name.removeprefix(f"{case}."): value for name, value in recorded.items() if name.startswith(case)}
    with torch.inference_mode():
        seen = [vlm.connector(vlm.vision_model(image)) for image in given["mid.images_after_resize"]]
        state = F.pad(given["in.observation.state"], (0, size.state - given["in.observation.state"].shape[1]))
        valid = given["in.observation.language.attention_mask"].bool()
        tokens = torch.cat(seen, dim=1) * size.width**0.5
        prefix = network.prefix(tokens, given["in.observation.language.tokens"], state, valid)
        valid_rows = prefix.valid.expand(len(tokens), -1)
        expected = given["mid.prefix_embs"][valid_rows]
        torch.testing.assert_close(prefix.states[0][valid_rows], expected, rtol=1e-5, atol=1e-4)
        for time, x, v in zip(given["mid.timesteps"], given["mid.x_t"], given["mid.v_t"], strict=True):
            velocity = network.velocity(prefix, x[:, None], time.expand(len(x), 1, x.shape[1]))[:, 0]
            torch.testing.assert_close(velocity, v, rtol=1e-5, atol=5e-5)


@pytest.mark.oracle(BUNDLE)
def test_the_experts_mlp_is_as_wide_as_the_published_rule_makes_it():
    config, weights = read_json(ORACLES / BUNDLE / "config.json"), load_file(ORACLES / BUNDLE / "model.safetensors")
    size = FlowSize(width=64, expert_multiplier=config["expert_width_multiplier"])
    gate = weights["model.vlm_with_expert.lm_expert.layers.0.mlp.gate_proj.weight"]
    assert gate.shape == (size.expert_mlp, size.expert_width)


def test_samples_of_a_chunk_do_not_depend_on_each_other(network):
    with torch.inference_mode():
        prefix, x, times = (
            prefix_of(network),
            noisy(3),
            torch.tensor([[0.2, 1.0, 0.7]])[..., None].expand(-1, -1, SMALL.chunk),
        )
        together = network.velocity(prefix, x, times)
        for draw in range(3):
            alone = network.velocity(prefix, x[:, draw : draw + 1], times[:, draw : draw + 1])
            torch.testing.assert_close(together[:, draw], alone[:, 0], rtol=1e-5, atol=1e-5)


def test_states_that_share_images_and_text_are_blind_to_each_other(network):
    states = torch.randn(1, 2, SMALL.state, generator=torch.Generator().manual_seed(3))
    frames = torch.randint(0, 256, (1, 32, 32, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    times = torch.full((1, 4, SMALL.chunk), 0.6)
    with torch.inference_mode():
        tokens, ids = network.image_tokens(frames), torch.tensor([[7, 8, 9]])
        together = network.velocity(network.prefix(tokens, ids, states), noisy(4), times)
        for index in range(2):
            own = slice(2 * index, 2 * index + 2)
            alone = network.velocity(network.prefix(tokens, ids, states[:, index]), noisy(4)[:, own], times[:, own])
            torch.testing.assert_close(together[:, own], alone, rtol=1e-5, atol=1e-5)


def test_padding_of_text_changes_nothing(network):
    with torch.inference_mode():
        valid = torch.tensor([[True, True, True, False, False]])
        padded, plain = prefix_of(network, ((7, 8, 9, 0, 0),), valid=valid), prefix_of(network)
        times = torch.full((1, 1, SMALL.chunk), 0.6)
        torch.testing.assert_close(
            network.velocity(padded, noisy(1), times), network.velocity(plain, noisy(1), times), rtol=1e-5, atol=1e-5
        )


def test_images_and_text_are_blind_to_the_state_and_see_each_other(network):
    with torch.inference_mode():
        one, other, renamed = prefix_of(network), prefix_of(network, state=-2.0), prefix_of(network, ((7, 8, 11),))
    for (k, v), (other_k, other_v) in zip(one.layers, other.layers, strict=True):
        assert k[:, :, :-1].equal(other_k[:, :, :-1])
        assert v[:, :, :-1].equal(other_v[:, :, :-1])
        assert not k[:, :, -1].equal(other_k[:, :, -1])
    assert not one.layers[-1][0][:, :, 0].equal(renamed.layers[-1][0][:, :, 0])


def test_an_action_does_not_see_later_ones(network):
    with torch.inference_mode():
        x, times = noisy(1), torch.full((1, 1, SMALL.chunk), 0.4)
        changed = x.clone()
        changed[:, :, 9:] += 1.0
        before, after = (network.velocity(prefix_of(network), each, times) for each in (x, changed))
    torch.testing.assert_close(before[:, :, :9], after[:, :, :9], rtol=1e-5, atol=1e-6)
    assert (before[:, :, 9:] - after[:, :, 9:]).abs().amax(dim=-1).min() > 1e-4


def test_each_row_has_a_time_of_its_own(network):
    with torch.inference_mode():
        x, times = noisy(1), torch.full((1, 1, SMALL.chunk), 0.4)
        later = times.clone()
        later[..., 9:] = 0.0
        before, after = (network.velocity(prefix_of(network), x, each) for each in (times, later))
    torch.testing.assert_close(before[:, :, :9], after[:, :, :9], rtol=1e-5, atol=1e-6)
    assert (before[:, :, 9:] - after[:, :, 9:]).abs().amax(dim=-1).min() > 1e-4


def test_pixel_shuffle_joins_squares_row_by_row():
    patches = torch.arange(16 * 2).view(1, 16, 2)
    joined = pixel_shuffle(patches, 2)
    for row in range(2):
        for column in range(2):
            first = 8 * row + 2 * column
            square = [patches[0, each] for each in (first, first + 1, first + 4, first + 5)]
            assert joined[0, 2 * row + column].equal(torch.cat(square))
