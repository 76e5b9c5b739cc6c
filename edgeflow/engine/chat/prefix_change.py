"""A change of a slot's prefix while the worker serves: a job among the chat plane's requests, one chunk per step."""

from __future__ import annotations

from edgeflow.engine.generate import FixedPrefix, Prefill, run_pass
from edgeflow.errors import InvalidArgument
from edgeflow.ipc.messages import SetPrefix
from edgeflow.kernels.kv import KVSlots
from edgeflow.models.chat import ChatModel
from edgeflow.reasons import Reason


class PrefixChange:
    """`begin`, then `step` while `left`; then `fixed` lies in its slot. slot: where the prefix before it lies."""

    def __init__(self, message: SetPrefix, slot: int) -> None:
        self.message = message
        self.fixed: FixedPrefix | None = None
        self._slot = slot
        self._prefill: Prefill | None = None

    @property
    def begun(self) -> bool:
        return self._prefill is not None

    @property
    def left(self) -> int:
        """Rows still to compute."""
        return self._prefill.left if self._prefill is not None else 0

    def begin(self, model: ChatModel, capacity: int) -> None:
        """Raise InvalidArgument for an empty prefix or one that does not fit, before anything is changed."""
        if not self.message.ids:
            return
        prompt = model.prompt(self.message.ids)
        if len(prompt) >= capacity:
            text = f"has {len(prompt)} tokens, the limit is {capacity - 1}"
            raise InvalidArgument(text, field="prefix", reason=Reason.CONTEXT_LENGTH_EXCEEDED)
        self.fixed = FixedPrefix(prompt, self._slot)
        self._prefill = Prefill(model, prompt, self._slot)

    def step(self, model: ChatModel, kv: KVSlots, most: int) -> int:
        """Compute the next chunk, of at most `most` rows; returns how many."""
        if self._prefill is None:
            return 0
        rows = self._prefill.rows(most, samples=False)
        run_pass(model.decoder, kv, [rows])
        return rows.span.length
