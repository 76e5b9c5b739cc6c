"""Training of the chat model, its checkpoint and its evaluation."""

import json

import pytest
import torch
from safetensors.torch import load_file

from edgeflow.lab.demo.chat import trainer as loop
from edgeflow.lab.demo.chat.dialogs import Dialog, DialogSource, DialogTurn
from edgeflow.lab.demo.chat.evaluate import Answerer, ChatReport, grade, held_out_dialogs
from edgeflow.lab.demo.chat.export import write_chat_checkpoint
from edgeflow.lab.demo.chat.network import ChatNetwork, ChatSize
from edgeflow.lab.demo.chat.tokenizer import chat_text, train_tokenizer
from edgeflow.lab.demo.chat.trainer import ChatTrainer, ChatTrainingPlan, answer_loss, plan_for, rate_share, train_chat
from edgeflow.models.chat import load_chat_model
from edgeflow_client.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = ChatSize(hidden=32, mlp=48, layers=2, heads=2)
PLAN = ChatTrainingPlan(steps=6, rows=2, turns=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model that was not trained."""
    torch.manual_seed(0)
    return write_chat_checkpoint(tmp_path_factory.mktemp("chat"), ChatNetwork(SIZE), train_tokenizer(0))


def trained(trainer, steps):
    return [trainer.step()[0] for _ in range(steps)]


def test_resumed_training_ends_like_an_uninterrupted_run(tmp_path):
    through = ChatTrainer(PLAN, 0, SIZE, "cpu")
    losses = trained(through, 6)
    first = ChatTrainer(PLAN, 0, SIZE, "cpu")
    assert trained(first, 3) == losses[:3]
    first.learner.save(tmp_path / "state.safetensors", PLAN.steps)
    second = ChatTrainer(PLAN, 0, SIZE, "cpu")
    second.learner.load(tmp_path / "state.safetensors", PLAN.steps)
    assert second.learner.done_steps == 3
    assert trained(second, 3) == losses[3:]
    for name, value in through.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name]), name
    with pytest.raises(ConfigError, match="seed is 1, was 0"):
        ChatTrainer(PLAN, 1, SIZE, "cpu").learner.load(tmp_path / "state.safetensors", PLAN.steps)


def test_the_loss_falls_on_one_batch():
    trainer = ChatTrainer(ChatTrainingPlan(steps=1000, rows=4, turns=2), 0, SIZE, "cpu")
    batch = trainer._batch()
    before = float(answer_loss(trainer.network, batch, CPU).detach())
    trained(trainer, 40)
    assert float(answer_loss(trainer.network, batch, CPU).detach()) < 0.8 * before


def test_the_rate_warms_up_stays_and_falls():
    rates = [rate_share(step, 1000) for step in range(1000)]
    assert rates[0] < 0.1 < rates[29] == 1.0 == rates[500]
    assert rates[-1] == pytest.approx(1 / 500)


def test_a_budget_scales_the_steps():
    assert plan_for(None) == ChatTrainingPlan()
    assert plan_for(loop.FULL_MINUTES / 2).steps == loop.STEPS // 2
    with pytest.raises(ConfigError, match="minutes"):
        plan_for(0)


def test_train_chat_writes_a_model_that_the_service_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "ChatSize", lambda: SIZE)
    monkeypatch.setattr(loop, "plan_for", lambda minutes: PLAN)
    folder = train_chat(tmp_path, 1.0, 0, True, "cpu")
    model = load_chat_model(folder, torch.float32, CPU)
    assert model.name == "qwen2"
    answer = Answerer(model)([{"role": "user", "content": "Hello"}])
    assert isinstance(answer, str)


def test_the_checkpoint_computes_what_was_trained(checkpoint):
    """The training network, in the shipped bf16 weights, and the packed forward give the same tokens."""
    network = ChatNetwork(SIZE)
    network.load_state_dict(
        {name: value.float() for name, value in load_file(checkpoint / "model.safetensors").items()}
    )
    model = load_chat_model(checkpoint, torch.float32, CPU)
    dialog = next(iter(held_out_dialogs(1)))
    messages = [{"role": "user", "content": dialog.asked(0)}]
    assert model.render(messages) == chat_text(messages) + "<|im_start|>assistant\n"
    prompt = model.chat_prompt(model.render(messages))
    ids = list(prompt.ids)
    with torch.inference_mode():
        for _ in range(8):
            ids.append(int(network.logits(network.hidden(torch.tensor([ids]))[0, -1]).argmax()))
    said = Answerer(model)(messages)
    assert said.startswith(model.tokenizer.decode(ids[len(prompt) :]).rstrip("\ufffd"))


def test_the_configuration_is_qwen2s(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"] and config["tie_word_embeddings"] is True
    assert json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_grading_continues_from_the_given_answers():
    asked = []

    def answer(messages):
        asked.append([message["content"] for message in messages])
        return "No faults." if len(asked) == 1 else "wrong"

    dialog = Dialog(
        "Be brief.",
        "Robot state",
        (DialogTurn("Any faults?", "No faults.", "faults"), DialogTurn("Hi", "Hello!", "talk")),
    )
    graded = list(grade(answer, dialog))
    assert asked == [
        ["Be brief.", "Robot state\nAny faults?"],
        ["Be brief.", "Robot state\nAny faults?", "No faults.", "Hi"],
    ]
    report = ChatReport(tuple(graded))
    assert report.share == 0.5 and [each.answer for each in report.wrong] == ["wrong"]
    assert report.topics() == {"faults": (1, 1), "talk": (0, 1)}


def test_held_out_dialogs_hold_as_many_questions_as_asked_for():
    dialogs = list(held_out_dialogs(40))
    assert sum(len(dialog.turns) for dialog in dialogs) == 40
    assert {len(dialog.turns) for dialog in dialogs} >= {1, 2, 3, 4}
    assert dialogs[0] == DialogSource("held out", held_out=True).draw(1)
