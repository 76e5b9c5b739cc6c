"""Turns of calls without content: a template gets null, as transformers gives it, unless it cannot take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeflow.config.chat import ChatConfig
from edgeflow.config.sections import LimitsConfig
from edgeflow.service.chat.body import ChatBody
from edgeflow.service.chat.prompts import ChatText
from tests.chat_checkpoint import write_chat_checkpoint

CALL = {"id": "1", "type": "function", "function": {"name": "go", "arguments": '{"x": 1}'}}
SAID = "{% for c in m.tool_calls or [] %}[{{ c.function.name }}{{ c.function.arguments.x }}]{% endfor %}"
TEMPLATES = {
    "asks for null": ("{% if m.content is none %}{{ SAID }}{% else %}{{ m.content }}{% endif %}", "[go1]yes"),
    "asks for text": ("{% if m.content is string %}-{% endif %}{{ m.content or '' }}{{ SAID }}", "[go1]-yes"),
    "takes either": ("{% if m.content %}{{ m.content }}{% endif %}{{ SAID }}", "[go1]yes"),
    "fails on null": ("{{ m.content + '' }}{{ SAID }}", "[go1]yes"),
    "looks into it": ("{% if 'y' in m.content %}-{% endif %}{{ SAID }}", "[go1]-"),
    "writes it out": ("{{ m.content }}{{ SAID }}", "[go1]yes"),
    "refuses null": ("{% if m.content is none %}{{ raise_exception('no') }}{% endif %}{{ SAID }}-", "[go1]--"),
}


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["absent", "null"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gets_what_it_takes(tmp_path: Path, name: str, content: dict[str, Any]):
    source, expected = TEMPLATES[name]
    write_chat_checkpoint(tmp_path, "qwen2")
    source = source.replace("{{ SAID }}", SAID)
    turns = "{% for m in messages %}{% if m.role == 'assistant' %}" + source + "{% endif %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(turns)
    text = ChatText(tmp_path, ChatConfig(capacity=64), LimitsConfig())
    asked = {"role": "user", "content": "hi"}
    answers = [{"role": "assistant", **content, "tool_calls": [CALL]}, {"role": "assistant", "content": "yes"}]
    prompt = text.chat_prompt(ChatBody.model_validate({"messages": [asked, *answers]}), None)
    assert text.tokenizer.decode(prompt.ids) == expected
