"""plimsoll's chat templates render generated conversations as jinja2 does, and the assistant's ranges are its messages."""

import json
import os
import pathlib
import random
import struct
import subprocess

import jinja2.exceptions
import pytest
import tokenizer_texts
from plimsoll.tokenize import render_chat
from transformers.utils.chat_template_utils import render_jinja_template

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
CACHE = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "tokenizers"

# As the models' repositories have them; those of CACHE are too long to stand here.
TURNS = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token@ }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "mistral": TURNS.replace("@ ", ""),
    "first_mistral": TURNS.replace("@", " + ' '"),
    "llama3_prompt": "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
}
# Things that the known ones do not use: a filter, a loop's control, a global.
ANY = (
    "{{ bos_token }}{% for message in messages %}\n  {% if loop.index > 3 %}{% break %}{% endif %}\n"
    "  {{- message | tojson }}\n{% endfor %}{{ strftime_now('%Y') | length }}"
)
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>")


def config_of(name):
    if name in TEMPLATES:
        return {"chat_template": TEMPLATES[name], "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    path = CACHE / name / "tokenizer_config.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing; tools/fetch_tokenizers fetches it")
    return json.loads(path.read_text(encoding="utf-8"))


def conversations(count):
    """Conversations, mostly of roles in turn, whose contents have spaces, thoughts and tool responses."""
    rng, files = random.Random(0), tokenizer_texts.standard_library()
    parts = [
        " ",
        "\n",
        "\n\n",
        "\x1c",
        "\u3000",
        "<think>",
        "</think>",
        "<tool_response>",
        "</tool_response>",
        "a",
        "\u00e9t\u00e9",
    ]
    for number in range(count):
        roles = ["system"] * rng.randrange(2) + ["user", "assistant"] * rng.randrange(4) + ["user"] * rng.randrange(2)
        if number % 5 == 0:
            roles = rng.choices(["system", "user", "assistant"], k=rng.randrange(1, 6))
        contents = [
            "".join(rng.choices(parts, k=rng.randrange(7)))
            if rng.random() < 0.6
            else tokenizer_texts.random_text(rng, files, ENDS)
            for _ in roles
        ]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        if messages:
            yield {"messages": messages, "add_generation_prompt": rng.random() < 0.5}


def run(folder, requests):
    blobs = [json.dumps(request).encode() for request in requests]
    data = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    command = [BUILD / "bin" / "tokenizer_program", folder, "--chat"]
    result = subprocess.run(command, input=data, capture_output=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return [json.loads(line) for line in result.stdout.split(b"\n") if line]


@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2", "qwen3", "llama3", "gemma3"])
def test_conversations_are_rendered_as_jinja_renders_them(name, tmp_path):
    config = config_of(name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = {
        key: value["content"] if isinstance(value, dict) else value for key, value in config.items() if key.endswith("_token")
    }
    requests = list(conversations(2000))
    compared = 0
    for request, ours in zip(requests, run(tmp_path, requests), strict=True):
        try:
            prompt = request["add_generation_prompt"]
            theirs = render_jinja_template(
                [request["messages"]], chat_template=config["chat_template"], add_generation_prompt=prompt, **tokens
            )[0][0]
        except (jinja2.exceptions.TemplateError, TypeError):
            assert "error" in ours, request
            continue
        compared += 1
        assert ours.get("text") == theirs, request
        replies = [theirs.encode()[begin:end].decode() for begin, end in ours["replies"]]
        contents = [message["content"] for message in request["messages"] if message["role"] == "assistant"]
        assert len(replies) == len(contents)
        for reply, content in zip(replies, contents, strict=True):
            assert reply.endswith(ENDS)
            body = reply.removesuffix(next(end for end in ENDS if reply.endswith(end)))
            assert body.strip().endswith(content.split("</think>")[-1].strip())
    assert compared > 500


@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2", "qwen3", "llama3", "gemma3", "any"])
def test_the_package_renders_conversations_as_transformers_does(name, tmp_path):
    config = {"chat_template": ANY, "bos_token": "<s>"} if name == "any" else config_of(name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": ""}))
    (tmp_path / "chat_template.jinja").write_text(config["chat_template"])
    tokens = {
        key: value["content"] if isinstance(value, dict) else value for key, value in config.items() if key.endswith("_token")
    }
    for request in conversations(200):
        prompt = request["add_generation_prompt"]
        options = {"chat_template": config["chat_template"], "add_generation_prompt": prompt, **tokens}
        try:
            theirs = render_jinja_template([request["messages"]], **options)[0][0]
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            with pytest.raises(type(error)):
                render_chat(tmp_path, request["messages"], add_generation_prompt=prompt)
            continue
        assert render_chat(tmp_path, request["messages"], add_generation_prompt=prompt) == theirs


# Parts that templates of today have beside that: blocks of what the model is to learn, arguments of tojson, tools and documents.
TODAY = (
    "{% if tools is not none %}{{ tools | tojson(separators=(',', ':'), sort_keys=True) }}{% endif %}"
    "{{ 'documents' if documents is not none }}{% for message in messages %}{% if message['role'] == 'assistant' %}\n"
    "  {%- generation %}{{ message['content'] }}{{ loop.index }}\n  {% endgeneration -%}\n"
    "{% else %}{{ message | tojson(sort_keys=true, indent=2) }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("given", [{}, {"tools": [{"name": "b", "a": 1}]}, {"tools": None, "documents": [{"text": "d"}]}])
def test_what_templates_of_today_use_is_rendered_as_transformers_does(given, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TODAY}))
    for request in conversations(20):
        theirs = render_jinja_template([request["messages"]], chat_template=TODAY, **given)[0][0]
        assert render_chat(tmp_path, request["messages"], **given) == theirs


def test_a_directory_without_a_template_is_an_error(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="expected .*chat_template.jinja or a chat_template"):
        render_chat(tmp_path, [])


def test_another_template_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    result = subprocess.run(
        [BUILD / "bin" / "tokenizer_program", tmp_path, "--chat"], capture_output=True, timeout=300, check=False
    )
    assert result.returncode == 1
    assert b"expected the chat template of ChatML, SmolLM2, Qwen 3, Llama 3, Gemma 3 or Mistral" in result.stderr
