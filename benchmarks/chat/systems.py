"""The systems that are compared: each answers a prompt greedily, one token after the other, with the time of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.dimensions import stage_of
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.published import decoder_config

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
PEERS = Path(__file__).parent / "peers"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Timed:
    """Tokens with their times."""

    at: list[float]
    """Seconds from the request to each token."""
    tokens: list[int]


Answer = Callable[[list[int], int], Timed]


def write_checkpoint(folder: Path) -> torch.nn.Module:
    """Random weights of the shape, as published checkpoints lie; the model that they are of, in float32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.02)
    model.save_pretrained(folder)
    return model


class Ours:
    """One slot and, for a prompt that begins with it, a fixed prefix in another."""

    def __init__(self, folder: Path, dtype: torch.dtype, *, int8: bool, capacity: int, head: str = "float") -> None:
        table: OperatorTable = built_in_table().converting("int8") if int8 else built_in_table()
        config = decoder_config({"model_type": "qwen2", **SHAPE}, "qwen2")
        self.decoder = LlamaDecoder(config, Weights(folder, dtype, CPU), table=table, head=head)
        self.kv: KVSlots = self.decoder.kv_slots(2, capacity)

    def __call__(self, prompt: list[int], count: int, known: int = 0) -> Timed:
        """known: rows of the prompt whose KV lies in slot 0."""
        at: list[float] = []
        tokens: list[int] = []
        ids, place = prompt[known:], known
        started = time.perf_counter()
        for _ in range(count):
            logits = self._rows(0, ids, place)
            place += len(ids)
            tokens.append(int(logits.argmax()))
            ids = tokens[-1:]
            at.append(time.perf_counter() - started)
        return Timed(at, tokens)

    def keep_prefix(self, prefix: list[int]) -> None:
        """Compute a prefix's KV in slot 1."""
        self._rows(1, prefix, 0)

    def after_prefix(self, prefix: int, prompt: list[int], count: int) -> Timed:
        """Answer with the first `prefix` rows copied from slot 1; the copy is part of the time."""
        started = time.perf_counter()
        self.kv.copy_rows(1, 0, prefix)
        lent_s = time.perf_counter() - started
        timed = self(prompt, count, prefix)
        return Timed([at + lent_s for at in timed.at], timed.tokens)

    @torch.inference_mode()
    def _rows(self, slot: int, ids: list[int], place: int) -> torch.Tensor:
        rows = self.decoder.embed(torch.tensor(ids))
        positions = torch.arange(place, place + len(ids))[None]
        layout = PackedLayout.of([Span(slot, place, len(ids))], rows.device, positions)
        return self.decoder.logits(self.decoder.forward_sampled(rows, layout, self.kv), stage_of(layout.lengths))[0]


def transformers_eager(model: torch.nn.Module) -> Answer:
    """Its own forward with its own cache, the head on the last row only."""

    @torch.inference_mode()
    def answer(prompt: list[int], count: int) -> Timed:
        at: list[float] = []
        tokens: list[int] = []
        ids, cache = torch.tensor([prompt]), None
        started = time.perf_counter()
        for _ in range(count):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
            ids = torch.tensor([tokens[-1:]])
            at.append(time.perf_counter() - started)
        return Timed(at, tokens)

    return answer


class Peer:
    """A system in a separate process, with an interpreter that has it; its script answers lines."""

    def __init__(self, python: Path, script: Path, model: Path, threads: int, *options: str) -> None:
        command = [str(python), str(script), str(model), str(threads), *options]
        packages = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": packages},
        )

    def __call__(self, prompt: list[int], count: int) -> Timed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"prompt": prompt, "tokens": count}), file=self._process.stdin, flush=True)
        while line := self._process.stdout.readline():
            if line.startswith('{"times"'):
                reply = json.loads(line)
                return Timed(reply["times"], reply["tokens"])
        raise SystemExit(f"{self._process.args}: ended without an answer")

    def peak_bytes(self) -> int:
        """The most memory that the process has held, files that it has mapped included."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines()
        (kib,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return kib << 10

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def write_gguf(python: Path, checkpoint: Path, out: Path, kind: str = "Q8_0") -> None:
    """The checkpoint with projections of a kind, and a Q8_0 embedding or one in F16 beside them."""
    subprocess.run([str(python), str(PEERS / "write_gguf.py"), str(checkpoint), str(out), kind], check=True)
