"""The chat model that is shipped."""

import json

import pytest
import torch
from safetensors import safe_open

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.demo.chat.evaluate import NEEDED, Answerer, eval_chat_command, evaluate_chat, held_out_dialogs
from edgeflow.lab.demo.chat.small_talk import GREETING, IDENTITY, NO_STATE, REFUSAL
from edgeflow.lab.demo.chat.tokenizer import train_tokenizer
from edgeflow.lab.shared_passes import run_pass
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import load_chat_model

QUESTIONS = 40
CPU = torch.device("cpu")
REPORT = (
    "Robot state: arm x+12 y-03 z21; gripper closed; holding red cube; objects 2; red cube x+10 y-05 z02 d19; "
    "blue ball x-14 y+08 z12 d30; task lift the red cube; mode pipelined; fps 20; age 040 ms; "
    "faults none"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    return load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, CPU)


@pytest.fixture(scope="module")
def answer(model):
    return Answerer(model)


def asked(*texts):
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 9, texts, strict=False)]


def test_the_folder_is_a_small_checkpoint_with_its_model_card():
    names = {path.name for path in EMBEDDED_CHAT_MODEL.iterdir()}
    assert names == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert sum(path.stat().st_size for path in EMBEDDED_CHAT_MODEL.iterdir()) <= 15 * 2**20
    with safe_open(EMBEDDED_CHAT_MODEL / "model.safetensors", "pt") as file:
        sizes = [file.get_tensor(name).numel() for name in file.keys()]  # noqa: SIM118
    assert 1e6 <= sum(sizes) <= 4e6


def test_the_tokenizer_is_the_one_that_training_makes():
    shipped = json.loads((EMBEDDED_CHAT_MODEL / "tokenizer.json").read_text())
    assert json.loads(train_tokenizer(0).to_str()) == shipped


def test_held_out_questions_get_exact_answers():
    report = evaluate_chat(EMBEDDED_CHAT_MODEL, QUESTIONS)
    assert len(report.graded) == QUESTIONS
    assert report.share >= 0.95, report.wrong  # one question above what a model of exactly NEEDED may miss by chance


def test_the_command_prints_the_share(capsys):
    assert eval_chat_command("demo-chat", 8, "command", kv="model", lookup=True, as_json=True) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    assert told["questions"] == 8 and len(told["wrong"]) == round(8 * (1 - told["exact"]))
    assert 0.9 < NEEDED < 1


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What are you?", IDENTITY),
        ("Who are you?", IDENTITY),
        ("Hello", GREETING),
        ("Hello!", GREETING),
        ("What is the capital of France?", REFUSAL),
        ("Tell me a joke.", REFUSAL),
        ("Where is the red cube?", NO_STATE),
    ],
)
def test_the_model_says_what_it_is(answer, question, expected):
    assert answer(asked(question)) == expected
    helpful = {"role": "system", "content": "You are a helpful assistant."}
    assert answer([helpful, *asked(question)]) == expected


def test_a_conversation_continues(answer):
    first = answer(asked(f"{REPORT}\nWhere is the red cube?"))
    assert first == "The red cube is at x+10 y-05 z02."
    said = [f"{REPORT}\nWhere is the red cube?", first, "And the blue ball?"]
    second = answer(asked(*said))
    assert second == "The blue ball is at x-14 y+08 z12."
    assert answer(asked(*said, second, "Is the gripper open?")) == "No, the gripper is closed."


def test_transformers_loads_it_and_computes_the_same(model):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(EMBEDDED_CHAT_MODEL, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED_CHAT_MODEL)
    for dialog in list(held_out_dialogs(8))[-3:]:
        messages = [*dialog.messages(len(dialog.turns) - 1), {"role": "user", "content": "What is the mode?"}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text == model.render(messages)
        ids = tokenizer.encode(text, add_special_tokens=False)
        prompt = model.chat_prompt(text)
        assert tuple(ids) == prompt.ids
        engine = ChatEngine(model, model.decoder.kv_slots(1, 1024), keep_logits=True)
        (step,) = run_pass(engine, [Generation(engine, prompt, SamplingParams(max_tokens=1))], 1024)
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(step.logits[0], expected, atol=2e-4, rtol=1e-4)
