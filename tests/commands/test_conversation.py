"""A conversation in the terminal, by its reads and writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edgeflow.commands.conversation import (
    MAX_TEXT_BYTES,
    AnswerTimes,
    ChatSession,
    converse,
    open_conversation,
    read_text,
)
from edgeflow.config.chat import ChatConfig, LongConfig
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.kinds import Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.verify.gate_streaming import StreamingTwin
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.published import read_published
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.test_long import gate_for

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    directory = tmp_path_factory.mktemp("chat")
    write_chat_checkpoint(directory, "qwen2")
    return load_chat_model(directory, torch.float32, CPU)


def conversation(model: ChatModel, capacity: int = 200, max_tokens: int = 6, system: str = "") -> ChatSession:
    engine = ChatEngine(model, model.decoder.kv_slots(1, capacity))
    return ChatSession(engine, SamplingParams(max_tokens=max_tokens), system)


def talk(conversation: ChatSession, *said: str | type[BaseException]) -> list[str]:
    """All that was written; an exception instead of a text is raised by the read."""
    turns: Iterator[str | type[BaseException]] = iter([*said, EOFError])
    written: list[str] = []

    def read() -> str:
        turn = next(turns)
        if isinstance(turn, str):
            return turn
        raise turn

    converse(conversation, read, written.append)
    return written


def answer_to(model: ChatModel, messages: list[dict[str, str]]) -> str:
    prompt = model.chat_prompt(model.render(messages))
    engine = ChatEngine(model, model.decoder.kv_slots(1, 200))
    generation = Generation(engine, prompt, SamplingParams(max_tokens=6))
    list(generate(engine, generation, 500))
    return model.tokenizer.decode(generation.tokens)


def test_an_answer_follows_from_the_whole_conversation(model: ChatModel):
    written = talk(conversation(model, system="be short"), "hello", "  ", "and then?")
    first = answer_to(model, [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}])
    turns = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "and then?"},
    ]
    lines = "".join(written)
    assert lines.startswith(first + "\n[first token after ")
    assert f"]\n{answer_to(model, turns)}\n[" in lines and lines.count("(6 tokens)") == 2


def test_drafts_change_no_answer(model: ChatModel):
    """The line below an answer says how many tokens a pass gave."""
    engine = ChatEngine(model, model.decoder.kv_slots(1, 400), drafts=Lookup())
    drafting = ChatSession(engine, SamplingParams(max_tokens=40))
    plain = ChatSession(ChatEngine(model, model.decoder.kv_slots(1, 400)), SamplingParams(max_tokens=40))
    said = [[*each.ask("hello hello hello")] for each in (drafting, plain)]
    assert "".join(said[0]) == "".join(said[1]) and drafting.times is not None
    assert drafting.times.tokens - 1 > drafting.times.passes > 0 and " per pass)" in drafting.times.line()


def test_a_conversation_that_no_longer_fits_is_reported_and_goes_on(model: ChatModel):
    written = "".join(talk(conversation(model, capacity=60), "x" * 100, "hi"))
    assert "at most 60 are permitted" in written and "(6 tokens)" in written


def test_ctrl_c_stops_the_answer_and_not_the_program(model: ChatModel):
    chat = conversation(model, max_tokens=50)
    written: list[str] = []
    turns = iter(["hello", "hi"])

    def write(piece: str) -> None:
        written.append(piece)
        if len(written) == 4:
            raise KeyboardInterrupt

    def read() -> str:
        try:
            return next(turns)
        except StopIteration:
            raise EOFError from None

    converse(chat, read, write)
    ends = [line for line in written if "first token after" in line]
    assert len(ends) == 2 and ends[0].startswith("\n[stopped; ") and "stopped" not in ends[1]
    assert [turn["role"] for turn in chat._messages] == ["user", "assistant"] * 2
    assert chat._messages[1]["content"] == "".join(written[:4]), "what was told before it was stopped"


def test_ctrl_c_at_the_prompt_leaves(model: ChatModel):
    assert talk(conversation(model), KeyboardInterrupt, "never read") == []


def test_a_system_message_may_come_from_a_file(tmp_path: Path):
    (tmp_path / "log").write_text("412 none cube left\nä", encoding="utf-8")
    assert read_text(tmp_path / "log", "system_file") == "412 none cube left\nä"
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "long").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    for name, told in (("none", "No such file"), ("bytes", "not UTF-8"), ("long", f"more than {MAX_TEXT_BYTES} bytes")):
        with pytest.raises(ConfigError, match=rf"^system_file: .*{name} .*{told}"):
            read_text(tmp_path / name, "system_file")


def test_the_line_of_an_answer():
    assert AnswerTimes(0.0123, 11, 2.0).line() == "first token after 12 ms, then 5.0 tokens/s (11 tokens)"
    assert AnswerTimes(0.0123, 11, 2.0, 90).line().endswith("(11 tokens, 90 tokens compressed)")
    assert AnswerTimes(0.0123, 11, 2.0, passes=4).line().endswith("(11 tokens, 2.5 per pass)")
    assert AnswerTimes(0.5, 1, 0.0).line() == "first token after 500 ms, then 0.0 tokens/s (1 tokens)"


def test_a_directory_without_a_model_is_reported(tmp_path: Path):
    with pytest.raises(CheckpointError):
        open_conversation(ChatConfig(model=str(tmp_path)), tmp_path, "cpu", None)


def test_a_conversation_goes_on_beyond_a_slot_with_a_gate(tmp_path: Path):
    write_chat_checkpoint(tmp_path, "qwen2")
    text = read_published(tmp_path).text
    write_gate(tmp_path, gate_for(text))
    long = LongConfig(gate="gate.json", length=400)
    config = ChatConfig(model=str(tmp_path), dtype="float32", capacity=32, max_tokens=6, long=long)
    chat = open_conversation(config, tmp_path, "cpu", 0.0)
    assert chat.remarks == ()
    written = "".join(talk(chat, "hello " * 20, "and then?", "x" * 400))
    assert written.count("(6 tokens, ") == 2 and "at most 400" in written
    twin = StreamingTwin(PlainBase.read(tmp_path, torch.float32, CPU), gate_for(text))
    model = load_chat_model(tmp_path, torch.float32, CPU)
    prompt = model.chat_prompt(model.render([{"role": "user", "content": ("hello " * 20).strip()}]))
    tokens = [int(twin.prefill(prompt.ids).logits.argmax())]
    for _ in range(5):
        tokens.append(int(twin.step(tokens[-1]).logits.argmax()))
    assert written.startswith(model.tokenizer.decode(tokens))
    assert f"(6 tokens, {10 * twin.folded} tokens compressed)" in written
    far = config.model_copy(update={"long": LongConfig(gate="gate.json", length=600)})
    (remark,) = open_conversation(far, tmp_path, "cpu", 0.0).remarks
    assert remark == "prompts of up to 600 tokens leave the 512 positions of the base"


def test_an_interrupt_ends_the_answer_of_the_command_and_not_the_command(tmp_path: Path):
    """The program itself, with a signal while it gives an answer of many seconds."""
    write_chat_checkpoint(tmp_path, "qwen2", max_position_embeddings=32768)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 271}))
    command = [sys.executable, "-m", "edgeflow.cli", "chat", "--model", str(tmp_path)]
    command += ["--set", "chat.max_tokens=30000", "--set", "chat.capacity=32768"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def hear_interrupts() -> None:  # whoever runs the tests in the background may have them ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=hear_interrupts, **pipes) as program:
        assert program.stdin is not None and program.stdout is not None
        program.stdin.write(b"hello\n")
        program.stdin.flush()
        begun = program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=100)
    assert begun and program.returncode == 0, err.decode()
    assert b"stopped; " in out
