"""Chat templates, which come with models and are programs in Jinja, in jinja2's sandbox."""

import datetime
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


def _refuse(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlocks(jinja2.ext.Extension):
    """Blocks {% generation %} ... {% endgeneration %}, which mark what the model is to learn and are rendered as they stand."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _read(directory: pathlib.Path) -> tuple[str, dict[str, str]]:
    """The template of a model's directory, and the texts of its bos_token, eos_token and their like."""
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = directory / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise ValueError(f"render_chat: expected {file} or a chat_template in tokenizer_config.json, got neither")
    tokens = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str | dict)}
    return template, {key: value["content"] if isinstance(value, dict) else value for key, value in tokens.items()}


def render_chat(
    directory: str | pathlib.Path,
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool = False,
    **variables: Any,
) -> str:
    """A conversation as the text that the model in `directory` was trained on.

    messages: {"role": ..., "content": ...} each. variables: what the template reads beside them, such as tools and documents,
    which are else None. Raises
    jinja2.TemplateError for a conversation that the template refuses. The template comes with the model and runs in
    jinja2's sandbox, which limits neither its time nor its memory.
    """
    template, tokens = _read(pathlib.Path(directory))
    for message in messages:
        if not isinstance(message, dict) or "role" not in message or ("content" not in message and "tool_calls" not in message):
            raise ValueError(f"render_chat: expected messages with a role and a content, got {message!r}")
    program = _environment().from_string(template)
    given = {"tools": None, "documents": None, **tokens, **variables}
    return program.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **given)
