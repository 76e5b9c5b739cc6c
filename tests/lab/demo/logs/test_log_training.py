"""Training on logs, and the evaluation of what it wrote."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from edgeflow.lab.demo.chat.dialogs import Dialog
from edgeflow.lab.demo.chat.export import write_chat_checkpoint
from edgeflow.lab.demo.chat.logs import trainer as training
from edgeflow.lab.demo.chat.logs.command import eval_logs_command
from edgeflow.lab.demo.chat.logs.dialogs import draw_dialog
from edgeflow.lab.demo.chat.logs.evaluate import ExactCount, GradedLogAnswer, LogReport
from edgeflow.lab.demo.chat.logs.held_out import EvidencePlace, held_out_questions
from edgeflow.lab.demo.chat.logs.trainer import LogPlan, LogTrainer, plan_for, train_logs
from edgeflow.lab.demo.chat.tokenizer import chat_text
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL, resolve_model
from edgeflow_client.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")
PLAN = LogPlan(steps=6, longest=256, batch_tokens=256)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(EMBEDDED_CHAT_MODEL / "tokenizer.json"))


def tokens(tokenizer: Tokenizer, dialog: Dialog) -> int:
    return len(tokenizer.encode(chat_text(dialog.messages(len(dialog.turns)))).ids)


@pytest.mark.parametrize("wanted", [160, 700, 2040])
def test_a_conversation_has_about_the_wanted_length(tokenizer, wanted):
    lengths = [tokens(tokenizer, draw_dialog(random.Random(seed), wanted)) for seed in range(20)]
    assert max(lengths) <= wanted
    assert min(lengths) > wanted / 2


def test_held_out_prompts_fit(tokenizer):
    prompts = [question.messages() for question in held_out_questions(64, "0", 2040)]
    lengths = [len(tokenizer.encode(chat_text(messages)).ids) for messages in prompts]
    assert 200 < min(lengths) < 400 and 1800 < max(lengths) < 2040


def test_resumed_training_ends_like_an_uninterrupted_run(tmp_path):
    through = LogTrainer(PLAN, 0, "cpu")
    losses = [through.step()[0] for _ in range(6)]
    first = LogTrainer(PLAN, 0, "cpu")
    assert [first.step()[0] for _ in range(3)] == losses[:3]
    first.learner.save(tmp_path / "state.safetensors", PLAN.steps)
    second = LogTrainer(PLAN, 0, "cpu")
    second.learner.load(tmp_path / "state.safetensors", PLAN.steps)
    assert [second.step()[0] for _ in range(3)] == losses[3:]
    for name, value in through.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name]), name


def test_batches_are_of_logs_and_of_single_states_and_grow():
    trainer = LogTrainer(LogPlan(steps=100, longest=512, batch_tokens=512), 1, "cpu")
    notes = [trainer.step()[1] for _ in range(5)]
    assert {note.split()[0] for note in notes} == {"logs", "states"}
    rng = random.Random(0)
    early, late = ([len(trainer._dialogs(rng, share)) for _ in range(20)] for share in (0.0, 0.9))
    assert max(early) > 1 and min(late) == 1


def test_training_begins_with_a_given_checkpoint(tmp_path):
    first = LogTrainer(PLAN, 0, "cpu")
    first.step()
    folder = write_chat_checkpoint(tmp_path / "first", first.network, first.tokenizer)
    for name, value in LogTrainer(PLAN, 0, "cpu", folder).network.state_dict().items():
        assert torch.equal(value, first.network.state_dict()[name].bfloat16().float()), name


def test_a_checkpoint_of_another_layout_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"begin: .* has no model\.safetensors"):
        LogTrainer(PLAN, 0, "cpu", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        LogTrainer(PLAN, 0, "cpu", tmp_path)
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"begin: .* other tensors"):
        LogTrainer(PLAN, 0, "cpu", tmp_path)


def test_a_run_does_not_resume_from_another_checkpoint(tmp_path):
    first = LogTrainer(PLAN, 0, "cpu")
    first.learner.save(tmp_path / "state", PLAN.steps)
    first.learner.load(tmp_path / "state", PLAN.steps)
    with pytest.raises(ConfigError, match="begin is not what it was"):
        LogTrainer(PLAN, 0, "cpu", resolve_model("demo-logs", chat=True)).learner.load(tmp_path / "state", PLAN.steps)


def test_a_budget_scales_the_steps():
    assert plan_for(None) == LogPlan()
    assert plan_for(training.FULL_MINUTES / 2).steps == training.STEPS // 2
    with pytest.raises(ConfigError, match="minutes"):
        plan_for(0)


def test_what_training_writes_can_be_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "plan_for", lambda minutes: PLAN)
    folder = train_logs(tmp_path, 1.0, 0, True, "cpu")
    capsys.readouterr()
    assert eval_logs_command(str(folder), 8, "0", 256, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["questions"] == 8 and len(told["cells"]) == 8
    assert told["summary"]["asked"] == 7 and told["look-up"]["asked"] == 1
    assert eval_logs_command(str(folder), 8, "0", 256, as_json=False) == 1
    assert "most fault" in capsys.readouterr().out


def test_prompts_longer_than_a_slot_are_not_asked():
    with pytest.raises(ConfigError, match="longest: a prompt has at most 2040 tokens, got 100000"):
        eval_logs_command("demo-chat", 4, "0", 100_000, as_json=True)


def test_the_embedded_model_is_known_by_its_name(capsys):
    assert eval_logs_command("demo-chat", 1, "0", 256, as_json=True) in (0, 1)
    assert json.loads(capsys.readouterr().out)["questions"] == 1


def test_a_report_counts_by_kind_and_place():
    questions = list(held_out_questions(16, "0", 300))
    graded = tuple(
        GradedLogAnswer(each, each.asked.answer if index else "wrong") for index, each in enumerate(questions)
    )
    report = LogReport(graded)
    assert report.share == 15 / 16
    assert report.cells()["ever fault", EvidencePlace.START] == ExactCount(0, 1)
    assert report.cells()["held at fault", EvidencePlace.MIDDLE] == ExactCount(1, 1)
    assert report.summary(asked=True) == ExactCount(13, 14) and report.summary(asked=False) == ExactCount(2, 2)
