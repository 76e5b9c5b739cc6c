"""Instructions to prompts to token ids.

Published source: `get_vla_action` of OpenVLA's experiments/robot/openvla_utils.py (the prompts) and `predict_action` of
prismatic/extern/hf/modeling_prismatic.py (the token appended to them).
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from edgeflow_client.errors import CheckpointError

_PROMPT = "In: What action should the robot take to {}?\nOut:"
_VICUNA_PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
    "USER: What action should the robot take to {}? ASSISTANT:"
)
_SPACE_PIECE = "▁"  # 29871 in Llama-2's vocabulary; training text went on with a space after the prompt
_BOS = "<s>"


def prompt_text(instruction: str, *, vicuna: bool) -> str:
    """The prompt; the instruction is lower-cased as in training. vicuna: that of the first release."""
    return (_VICUNA_PROMPT if vicuna else _PROMPT).format(instruction.lower())


class Prompter:
    """Builds the prompt a checkpoint was trained with."""

    def __init__(self, directory: Path, *, vicuna: bool) -> None:
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is missing or not a tokenizer: copy the checkpoint again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._vicuna = vicuna
        bos, space = (self._tokenizer.token_to_id(piece) for piece in (_BOS, _SPACE_PIECE))
        if bos is None or space is None:
            raise CheckpointError(f"{path} lacks the piece {_BOS if bos is None else _SPACE_PIECE!r}")
        self._bos, self._space = bos, space

    def text(self, instruction: str) -> str:
        """The prompt; the instruction is lower-cased as in training."""
        return prompt_text(instruction, vicuna=self._vicuna)

    def ids(self, instruction: str) -> tuple[int, ...]:
        """BOS, the prompt, and the trailing space piece."""
        ids = self._tokenizer.encode(self.text(instruction)).ids
        if ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        return tuple(ids) if ids[-1] == self._space else (*ids, self._space)
