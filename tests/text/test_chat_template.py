"""Chat templates: where they are found, what they say, what they may not do."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from edgeflow.text import chat_template
from edgeflow.text.chat_template import ChatTemplate
from edgeflow_client.errors import CheckpointError, InvalidArgument, Unavailable

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Ünïcode <b> & {{ braces }}"},
]
TEMPLATE = """\
{%- if tools %}
{{ tools | tojson(indent=2) }} {{ tools | tojson(separators=(',', ':'), sort_keys=true) }}
{% endif %}
{% for message in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
{{ bos_token }}{{ message.role }}: {{ message['content'] | trim }}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""


def test_equals_transformers(tmp_path: Path):
    from transformers import PreTrainedTokenizerFast

    from tests.chat_checkpoint import tokenizer

    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<|end|>", chat_template=TEMPLATE)
    ours = ChatTemplate(TEMPLATE, {"bos_token": "<|end|>"})
    tools = [{"type": "function", "function": {"name": "größe", "a": 1}}]
    for given in (None, tools):
        for answer in (True, False):
            wanted = theirs.apply_chat_template(TURNS, tools=given, tokenize=False, add_generation_prompt=answer)
            assert ours(TURNS, answer=answer, tools=given) == wanted
    assert "Ünïcode" not in ours(TURNS) and "größe" in ours(TURNS, tools=tools)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
        "{% for m in messages %}  {%- generation -%}  {{ m.content }}  {%- endgeneration -%}  \n{% endfor %}",
        "{% for m in messages %}\n  {% generation %}\n  {{ m.content }}\n  {% endgeneration %}\n{% endfor %}",
        "{%+ generation +%} {{ messages[0].content }} {%+ endgeneration +%} ",
        "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ loop.index }}{{ m.content }}"
        "{% endgeneration %}{% else %}{% generation %}{% if loop.last %}!{% endif %}{% endgeneration %}{% endif %}"
        "{% endfor %}",
        "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% set s = namespace(a=1) %}{% generation %}{% set s.a = 2 %}{% endgeneration %}{{ s.a }}",
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{{ say(messages[1]) }}",
        "{% generation %}{% for m in messages %}{{ m.role }}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}"
        "{% endgeneration %}",
    ],
)
def test_generation_tags_are_as_in_transformers(tmp_path: Path, source: str):
    from transformers import PreTrainedTokenizerFast

    from tests.chat_checkpoint import tokenizer

    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=source)
    wanted = theirs.apply_chat_template(TURNS, tokenize=False)
    (tmp_path / "chat_template.jinja").write_text(source)
    ours = ChatTemplate.load(tmp_path)
    assert ours is not None and ours(TURNS, answer=False) == wanted != ""


@pytest.mark.parametrize("source", ["{% generation %}", "{% endgeneration %}", "{% generation %}{% endfor %}"])
def test_a_generation_tag_that_does_not_end_is_reported(source: str):
    with pytest.raises(CheckpointError, match="chat_template is not a template"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"chat_template.jinja": "a", "tokenizer_config.json": json.dumps({"chat_template": "b"})}, "a"),
        ({"chat_template.json": json.dumps({"chat_template": "{{ eos_token }}"})}, None),
        (
            {
                "chat_template.json": json.dumps({"chat_template": "{{ eos_token }}"}),
                "tokenizer_config.json": json.dumps({"eos_token": {"content": "<e>", "special": True}}),
            },
            "<e>",
        ),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
                )
            },
            "d",
        ),
    ],
)
def test_where_a_template_is_found(tmp_path: Path, files: dict[str, str], wanted: str | None):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    template = ChatTemplate.load(tmp_path)
    assert template is not None and template([]) == (wanted or "")


def test_no_template_is_none_and_a_wrong_one_is_reported(tmp_path: Path):
    assert ChatTemplate.load(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 5}))
    with pytest.raises(CheckpointError, match="must be text or a list of named texts"):
        ChatTemplate.load(tmp_path)


def test_a_template_may_reject_a_conversation():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidArgument, match="messages: roles must alternate"):
        template(TURNS)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for a in range(10000000) %}{% endfor %}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_can_only_compute_text(source: str):
    with pytest.raises(InvalidArgument, match="does not accept these messages"):
        ChatTemplate(source, {})(TURNS)


MUCH = 10**8
GROWING = "{% set ns = namespace(x='xx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
LOOPS = "{% for x in range(99999) %}" * 3 + "{% endfor %}" * 3


def most_kib() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ 'x' * {MUCH} }}}}",
        f"{{{{ 'x' | center({MUCH}) }}}}",
        f"{{{{ '%{MUCH}d' % 1 }}}}",
        f"{{{{ [1] * {MUCH} }}}}",
        GROWING,
    ],
)
def test_a_template_takes_no_memory_of_the_process_that_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
):
    monkeypatch.setattr(chat_template, "MEMORY_BYTES", 64 << 20)
    (tmp_path / "chat_template.jinja").write_text(source)
    before = most_kib()
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    with pytest.raises((InvalidArgument, CheckpointError), match="takes more than 64 MiB of memory"):
        template(TURNS)
    assert most_kib() - before < 32 << 10


@pytest.mark.parametrize("source", [LOOPS, "{{ 7 ** (17 ** (messages[0].content | length)) }}"])
def test_a_template_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, source: str):
    """And the next messages are rendered."""
    monkeypatch.setattr(chat_template, "RENDER_S", 1)
    template = ChatTemplate(f"{{% if messages %}}{source}{{% endif %}}end", {})
    assert template([]) == "end"
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match=r"messages: the model's chat template takes .* processor time"):
        template(TURNS)
    assert time.monotonic() - began < chat_template.PATIENCE_S
    assert template([]) == "end"


def test_a_process_that_is_stopped_or_lost_is_replaced():
    template = ChatTemplate("{{ messages[0].content }}", {})
    for number in (signal.SIGSTOP, signal.SIGKILL):
        assert template(TURNS) == "Be brief."
        os.kill(template._process.pid, number)
        try:
            assert template(TURNS) == "Be brief."
        except Unavailable as error:  # it was lost while it was asked
            assert error.field == "messages" and "try again" in error.text
    assert template(TURNS) == "Be brief."


def test_a_template_that_cannot_be_compiled_is_reported_when_it_is_started():
    template = ChatTemplate("{{ messages | nothing }}", {})
    with pytest.raises(CheckpointError, match="No filter named 'nothing'"):
        template.start()
