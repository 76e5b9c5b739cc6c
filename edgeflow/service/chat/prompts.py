"""The torch-free half of a chat model: messages to token ids, token ids to text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow.config.chat import ChatConfig, ChatSlot
from edgeflow.config.sections import LimitsConfig
from edgeflow.ipc.framing import MAX_PAYLOAD_BYTES
from edgeflow.service.chat.body import ChatBody, CompletionBody
from edgeflow.service.chat.images import read_image
from edgeflow.service.chat.messages import AssistantMessage, ImagePart, Message, TextPart, Tool, ToolCall
from edgeflow.service.chat.tool_calls import BEGIN
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.tokenizer import Marks, TextTokenizer
from edgeflow_client.errors import InvalidArgument, NotFound
from edgeflow_client.reasons import Reason

MAX_IMAGES = 4
CHARACTERS_PER_TOKEN = 32  # upper bound; prose has about four
COUNTED_BYTES = 4  # per permitted token: a text of fewer bytes may fit, and is tokenised without being counted before
MAX_CHARACTERS = 1 << 20  # of any prompt: tokenising takes a second or more


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as the worker gets it."""

    ids: list[int]
    """Token ids, with one placeholder per image."""
    field: str
    """The field of the request that holds the prompt, for errors."""
    images: tuple[NDArray[np.uint8], ...] = ()
    """RGB [H, W, 3], in order."""


class ChatText:
    """Tokenizer, chat template and slots of a checkpoint. Methods may run in a thread; all but `replace` are pure.

    slots: the present prefix of each declared slot; None if it was removed.
    """

    def __init__(self, path: Path, config: ChatConfig, limits: LimitsConfig) -> None:
        values = read_json(path / "config.json")
        vocab = values.get("vocab_size") or values.get("text_config", {}).get("vocab_size")
        self._vocab_size = int(vocab or 0)
        self.tokenizer = TextTokenizer(path, self._vocab_size)
        self._template = ChatTemplate.load(path)
        if self._template is not None:
            self._template.start()
        self._no_content = _no_content(self._template) if self._template is not None else None
        self.slots: Mapping[str, ChatSlot | None] = {slot.id: slot for slot in config.slots}
        self._name = config.name
        self._limits = limits
        self._most_tokens = config.most_tokens

    def names(self) -> list[str]:
        """The model's names in requests: its own name, and name:slot for each slot."""
        return [self._name, *(f"{self._name}:{slot}" for slot in self.slots)]

    def slot(self, model: str, named: str | None) -> ChatSlot | None:
        """The fixed prefix a request selects; NotFound for an unknown model or slot."""
        name, _, of_name = model.partition(":")
        if model and name != self._name:
            raise NotFound(f"unknown chat model; this service serves {self._name!r}", field="model")
        wanted = named or of_name
        if wanted and wanted not in self.slots:
            known = ", ".join(self.slots) or "none"
            raise NotFound(f"unknown slot; declared slots: {known}", field="slot")
        return self.slots.get(wanted)

    def replace(self, slot_id: str, slot: ChatSlot | None) -> None:
        """Replace the prefix of a slot from the next request on."""
        self.slots = {**self.slots, slot_id: slot}

    def prefix_ids(self, slot: ChatSlot) -> list[int]:
        """The tokens of a fixed prefix."""
        if slot.text:
            return self._encode(slot.text, special=True, field="text")
        return self._render([message.model_dump() for message in slot.messages], answer=False)

    def chat_prompt(self, body: ChatBody, slot: ChatSlot | None) -> PreparedPrompt:
        """The prompt of a slot's own messages followed by the request's, through the checkpoint's template."""
        if slot is not None and slot.text:
            raise InvalidArgument("this slot's prefix is plain text: use /v1/completions", field="slot")
        before = [message.model_dump() for message in slot.messages] if slot else []
        messages, images = self._plain(body.messages)
        ids = self._render([*before, *messages], body.offered_tools, f"{BEGIN}\n" if body.forced_tools else "")
        return PreparedPrompt(ids, "messages", images)

    def text_prompts(self, body: CompletionBody, slot: ChatSlot | None) -> list[PreparedPrompt]:
        """The prompts of a slot's text followed by each text, or by the token ids, of the request."""
        if slot is not None and slot.messages:
            raise InvalidArgument("this slot's prefix is a list of messages: use /v1/chat/completions", field="slot")
        before, prompts = slot.text if slot else "", body.prompts
        characters = sum(len(before) + len(each) for each in prompts.values() if isinstance(each, str))
        if characters > MAX_CHARACTERS:
            raise _too_long(f"has {characters} characters; the limit is {MAX_CHARACTERS}", "prompt")
        return [PreparedPrompt(self._continued(before, each, field), field) for field, each in prompts.items()]

    def _continued(self, before: str, prompt: str | list[int], field: str) -> list[int]:
        if isinstance(prompt, str):
            return self._encode(before + prompt, special=True, field=field)
        if max(prompt) >= self._vocab_size:
            why = f"holds token {max(prompt)}; this model's token ids are 0 to {self._vocab_size - 1}"
            raise InvalidArgument(why, field=field)
        return [*(self._encode(before, special=True, field="slot") if before else ()), *prompt]

    def encode(self, text: str) -> list[int]:
        """The token ids of a plain text, with the tokenizer's initial tokens."""
        return self._encode(text, special=True)

    def count(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of messages; an image counts as one."""
        return self._render(self._plain(messages)[0])

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool] = (),
        begun: str = "",
        *,
        answer: bool = True,
        field: str = "messages",
    ) -> list[int]:
        """The token ids of messages, in which special tokens are plain text. begun: the beginning of the answer."""
        template = self._template
        if template is None:
            raise InvalidArgument("this model has no chat template: use /v1/completions", field="messages")
        if tools and not template.takes_tools:
            raise InvalidArgument("this model's chat template does not support tools", field="tools")
        marks = Marks(self.tokenizer.special)
        offered = marks.hide([tool.model_dump(exclude_none=True) for tool in tools]) or None
        text = template(marks.hide(messages), answer=answer, tools=offered) + begun
        if not marks.any:
            return self._encode(text, special=False, field=field)
        self._check_fits(marks.show(text), field)
        return self.tokenizer.encode_rendered(text, marks)

    def _encode(self, text: str, *, special: bool, field: str = "prompt") -> list[int]:
        """The token ids of a text. A text that cannot fit is rejected first: tokenising takes time and memory."""
        self._check_fits(text, field)
        return self.tokenizer.encode(text, special=special, field=field)

    def _check_fits(self, text: str, field: str) -> None:
        self._check_length(len(text), field)
        size = len(text.encode(errors="surrogatepass"))  # the tokenizer rejects what is not valid Unicode
        if size > COUNTED_BYTES * self._most_tokens and self.tokenizer.far_exceeds(text, self._most_tokens):
            limit = f"the limit is {self._most_tokens}, prompt and answer together"
            raise _too_long(f"has more tokens than fit; {limit}", field)

    def _check_length(self, characters: int, field: str) -> None:
        most = min(self._most_tokens * CHARACTERS_PER_TOKEN, MAX_CHARACTERS)
        if characters > most:
            raise _too_long(f"has {characters} characters; the limit is {most}, for {self._most_tokens} tokens", field)

    def _plain(self, messages: Sequence[Message]) -> tuple[list[dict[str, Any]], tuple[NDArray[np.uint8], ...]]:
        """Messages in the form that templates take, and their images."""
        self._check_length(sum(map(_characters, messages)), "messages")
        images: list[NDArray[np.uint8]] = []
        plain = []
        for index, message in enumerate(messages):
            content: Any = message.content
            if isinstance(content, list):
                where = f"messages.{index}.content"
                parts = [self._part(part, f"{where}.{at}", images) for at, part in enumerate(content)]
                only_text = all(part["type"] == "text" for part in parts)
                content = "".join(part["text"] for part in parts) if only_text else _joined(parts)
            outside = _outside(message)
            if content is None:
                content = self._no_content if "tool_calls" in outside else ""
            plain.append({**outside, "content": content})
        return plain, tuple(images)

    def _part(self, part: TextPart | ImagePart, field: str, images: list[NDArray[np.uint8]]) -> dict[str, str]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text}
        if len(images) == MAX_IMAGES:
            raise InvalidArgument(
                f"a request may have at most {MAX_IMAGES} images", field=field, reason=Reason.IMAGES_TOO_MANY
            )
        images.append(read_image(part.image_url.url, f"{field}.image_url.url", self._limits))
        if sum(image.nbytes for image in images) > MAX_PAYLOAD_BYTES:
            raise InvalidArgument(
                f"the images exceed {MAX_PAYLOAD_BYTES // 3} pixels in total",
                field=field,
                reason=Reason.IMAGES_TOO_LARGE,
            )
        return {"type": "image"}


def _too_long(why: str, field: str) -> InvalidArgument:
    return InvalidArgument(why, field=field, reason=Reason.CONTEXT_LENGTH_EXCEEDED)


def _characters(message: Message) -> int:
    """The characters of a message, before the template is applied; images have none."""
    parts = [message.content or ""] if not isinstance(message.content, list) else message.content
    texts = [part if isinstance(part, str) else part.text for part in parts if not isinstance(part, ImagePart)]
    calls = message.tool_calls or [] if isinstance(message, AssistantMessage) else []
    return sum(map(len, [*texts, *(call.function.arguments for call in calls)]))


def _joined(parts: list[dict[str, str]]) -> list[dict[str, str]]:
    """The parts with adjacent texts joined, so that no special token can hide in a seam."""
    joined: list[dict[str, str]] = []
    for part in parts:
        if joined and "text" in part and "text" in joined[-1]:
            part = {**part, "text": joined.pop()["text"] + part["text"]}
        joined.append(part)
    return joined


def _outside(message: Message) -> dict[str, Any]:
    """A message without its content, in the form that templates take: with the arguments of calls as objects."""
    role = "system" if message.role == "developer" else message.role
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return {"role": role}
    return {"role": role, "tool_calls": [_called(call) for call in message.tool_calls]}


def _called(call: ToolCall) -> dict[str, Any]:
    arguments = json.loads(call.function.arguments)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _no_content(template: ChatTemplate) -> str | None:
    """The content of a message that has only calls: None, as transformers passes it to a template, or "" if this
    template fails on None or writes it out.
    """
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {}}}
    for content in (None, ""):
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        with contextlib.suppress(InvalidArgument):
            text = template([{"role": "user", "content": "a"}, turn, {"role": "tool", "content": "b"}])
            if str(None) not in text:
                return content
    return None
