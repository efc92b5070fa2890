"""Many requests to one model at once, each with the reply that it gets alone; docs/serve.md."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import torch

from plimsoll._arguments import check_number, check_size, check_sizes, check_text, shown
from plimsoll._owned_model import dtype_name
from plimsoll.tokenize import Tokenizer

_PATIENCE = 100  # milliseconds after which a thread that waits hears Ctrl-C
_GIBIBYTE = 1 << 30
_LEAST, _LARGEST = -(2**63), 2**63 - 1  # an int of C++
_MOST_GIBIBYTES = 1 << 20
_MOST_BATCH = 128
_MOST_WAITING = 10_000
_MOST_TOP = 20
_MOST_STOPS = 16


class QueueFull(RuntimeError):
    """As many requests wait as may wait."""


class Token(NamedTuple):
    """A token of a reply. text: the characters that it completes, which may be none; a model without tokenizer.json, or of a T5
    spiece.model, gives none at all. With `stop`, what may become one of these texts comes with a later token. logprob and
    top, the likeliest tokens with theirs, are by the model, before temperature and penalties."""

    id: int
    text: str
    logprob: float | None
    top: list[tuple[int, float]]


class Reply:
    """The tokens of a request as they come, for `for` or `async for`. One loop reads it.

    finish_reason, when they have ended: "stop" (a token that ends a text, which is the last, a text of `stop`, or JSON that is whole),
    "length" or "cancelled", by cancel() or by the engine's close(). What goes wrong in the engine, Inf and NaN among it, is a RuntimeError
    of the loop. A reply that is no longer referred to is cancelled.
    """

    def __init__(self, engine: Engine, core: Any, wants_log_probabilities: bool, stops: list[str]) -> None:
        self.finish_reason: str | None = None
        self._engine = engine  # lives as long as its replies
        self._core = core
        self._awaited = False
        self._wants = wants_log_probabilities
        self._tokenizer = engine.tokenizer
        if self._tokenizer is not None:
            self._stream = torch.classes.plimsoll.DecodeStream(self._tokenizer._core, False)
        self._stops = torch.classes.plimsoll.StopTexts(stops) if stops else None
        self._stopped = False  # by a text of these

    def cancel(self) -> None:
        """No more tokens are wanted: the engine forgets the request before its next step."""
        self._core.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        while not self._is_ready(_PATIENCE):
            pass
        if (token := self._take()) is None:
            raise StopIteration
        return token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        while not self._is_ready(0):
            await self._changed()
        if (token := self._take()) is None:
            raise StopAsyncIteration
        return token

    def _is_ready(self, milliseconds: int) -> bool:
        self._engine._check_process()
        return self._stopped or bool(self._core.wait_for(milliseconds))

    async def _changed(self) -> None:
        if self._awaited:
            raise RuntimeError("Reply: expected one loop that reads it, got a second")
        descriptor = self._core.descriptor()
        self._core.clear()
        if self._core.wait_for(0):
            return
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(descriptor, _set_done, ready)
        self._awaited = True
        try:
            await ready
        finally:
            self._awaited = False
            loop.remove_reader(descriptor)

    def _take(self) -> Token | None:
        if self._stopped or (found := self._core.next()) is None:
            self.finish_reason = "stop" if self._stopped else self._core.end()
            return None
        token, ends, is_last, log_probability, top, top_log_probabilities = found
        text = ""
        if self._tokenizer is not None:
            text = self._text_of(token if not ends and token < len(self._tokenizer) else None, is_last)
        top_tokens = list(zip(top, top_log_probabilities, strict=True))
        return Token(token, text, log_probability if self._wants else None, top_tokens)

    def _text_of(self, token: int | None, is_last: bool) -> str:
        """The text that a token completes; None: a token without one."""
        text: str = "" if token is None else self._stream.next(token)
        if is_last:
            text += self._stream.finish()
        if self._stops is None:
            return text
        text = self._stops.add(text)
        if self._stops.reached():
            self._stopped = True
            self._core.cancel()
        elif is_last:
            text += self._stops.finish()
        return text


def _set_done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _number(name: str, value: float, lowest: float, highest: float) -> float:
    number = check_number("submit", name, value)
    if not lowest <= number <= highest:
        raise ValueError(f"submit: expected {name} from {lowest:g} to {highest:g}, got {value}")
    return number


def _optional_number(name: str, value: float | None, lowest: float, highest: float) -> float | None:
    return None if value is None else _number(name, value, lowest, highest)


def _optional_size(name: str, value: int | None, highest: int) -> int | None:
    return None if value is None else check_size("submit", name, value, highest=highest)


def _ids(name: str, values: Any) -> list[int]:
    ids = check_sizes("submit", name, values)
    for place, token in enumerate(ids):
        if abs(token) > _LARGEST:
            raise ValueError(f"submit: expected {name}[{place}] a token's id, got {token}")
    return ids


def _directory(name: str, value: Any) -> Path:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"Engine: expected {name} a path, got {shown(value)}")
    return Path(path)


def _stop_texts(stop: str | Sequence[str] | None) -> list[str]:
    if stop is None:
        return []
    stops = [stop] if isinstance(stop, str) else stop
    if isinstance(stops, bytes) or not isinstance(stops, Sequence):
        raise TypeError(f"submit: expected stop a text or a list of texts, got {shown(stop)}")
    if len(stops) > _MOST_STOPS:
        raise ValueError(f"submit: expected at most {_MOST_STOPS} texts in stop, got {len(stops)}")
    texts = [_utf8("submit", f"stop[{place}]", check_text("submit", f"stop[{place}]", text)) for place, text in enumerate(stops)]
    if "" in texts:
        raise ValueError("submit: expected texts in stop that are not empty, got an empty one")
    return texts


def _utf8(where: str, name: str, text: str) -> str:
    """The text, which may hold no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: expected {name} of Unicode characters, got {text[error.start]!r} at {error.start}, which is none"
        ) from None
    return text


class Engine:
    """A model that serves many requests together: see :meth:`submit`. Its steps are taken by a thread of C++.

    model_dir: a Hugging Face directory of a decoder-only model or a T5. dtype: of its weights, a torch.dtype, "fp32", "bf16", "fp16",
    "fp8", "nvfp4", "mxfp4" (codes) or None: as they are stored. kv, of keys and values: "computed", "bf16" or "fp8". max_batch:
    requests that are written at once, 1 to 128; `queue` more may wait. max_context: tokens of a prompt and its reply; None: as many as
    the model sees, of a T5 2048. memory: of keys and values, in GiB. adapters: directories of LoRA adapters, as PEFT writes them, by the names
    that :meth:`submit` knows them by. A T5 has "computed" keys and values and no adapters. The options are those of `plimsoll serve`.
    An engine works in the process that made it: in a forked child, submit() and its replies raise, and close() does nothing.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        dtype: torch.dtype | str | None = None,
        *,
        kv: str = "computed",
        max_batch: int = 64,
        max_context: int | None = None,
        memory: float = 1.0,
        queue: int = 256,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        directory = _directory("model_dir", model_dir)
        if adapters is not None and not isinstance(adapters, Mapping):
            raise TypeError(f"Engine: expected adapters a mapping of names to directories, got {shown(adapters)}")
        adapter_dirs = {
            _utf8("Engine", "an adapter's name", check_text("Engine", "an adapter's name", name)): _directory(
                f"adapters[{name!r}]", folder
            )
            for name, folder in (adapters or {}).items()
        }
        if "" in adapter_dirs:
            raise ValueError(f"Engine: expected a name for {adapter_dirs['']}, got none")
        gibibytes = check_number("Engine", "memory", memory)
        if not 0 < gibibytes < _MOST_GIBIBYTES:
            raise ValueError(f"Engine: expected memory in GiB, more than 0 and less than {_MOST_GIBIBYTES}, got {memory}")
        self._core = torch.ops.plimsoll.serve_engine(
            str(directory),
            dtype=dtype_name(dtype, codes=True, where="Engine"),
            kv=check_text("Engine", "kv", kv),
            max_batch=check_size("Engine", "max_batch", max_batch, 1, _MOST_BATCH),
            max_context=0 if max_context is None else check_size("Engine", "max_context", max_context, 2, _LARGEST),
            memory=int(gibibytes * _GIBIBYTE),
            queue=check_size("Engine", "queue", queue, 1, _MOST_WAITING),
            adapter_names=list(adapter_dirs),
            adapter_directories=[str(folder) for folder in adapter_dirs.values()],
        )
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._core.close)
        if overflowed := self._core.warning():
            warnings.warn(f"Engine: {overflowed}", stacklevel=2)
        self.tokenizer = self._find_tokenizer(directory)
        self._vocabulary = int(self._core.vocabulary())
        self._ends: list[int] = self._core.ends()
        end = None if self.tokenizer is None else self.tokenizer.eos_token_id
        if end is not None and end < self._vocabulary and end not in self._ends:
            self._ends.append(end)

    def _find_tokenizer(self, directory: Path) -> Tokenizer | None:
        if vocabulary := self._core.t5_vocabulary():
            return Tokenizer._of_t5(directory, vocabulary) if (directory / "spiece.model").is_file() else None
        return Tokenizer(directory) if (directory / "tokenizer.json").is_file() else None

    @property
    def context(self) -> int:
        """Tokens that a prompt and its reply may have together."""
        return int(self._core.context())

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        stop: str | Sequence[str] | None = None,
        end_ids: Sequence[int] | None = None,
        seed: int | None = None,
        logprobs: int | None = None,
        adapter: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Asks for a reply to a text or ids, which a T5's encoder reads, and returns at once. From any thread. An empty text is a line
        break, as in `plimsoll generate`, and for a T5 </s> alone.

        max_tokens: at most; None, and more than that: as many as the context has room for. temperature, top_k, top_p, min_p and
        repetition_penalty None: as the model's generation_config.json says. stop: a text, or up to 16, which end the reply and are
        not in its tokens' texts. end_ids: tokens that end the text; None: the model's. seed: of the draws, any 64 bits; None: one
        of its own. logprobs: 0 for those of the tokens, n for those of the n likeliest besides. adapter: the name of one of the
        engine's adapters; None: the model without. response_format: {"type": "json_object"} or {"type": "json_schema",
        "json_schema": {"name": ..., "schema": ...}}, as the server takes it, after which the text ends; None: any text. Raises
        QueueFull.
        """
        self._check_process()
        stops = _stop_texts(stop)
        if stops and self.tokenizer is None:
            raise ValueError("submit: expected no stop for a model without tokenizer.json, or of a T5 spiece.model, got one")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("submit: expected ids for a model without tokenizer.json, or of a T5 spiece.model, got a text")
            text = _utf8("submit", "a prompt", prompt)
            ids = self.tokenizer.encode(text or ("" if self._core.t5_vocabulary() else "\n"))
        else:
            ids = _ids("prompt", prompt)
        core = torch.ops.plimsoll.serve_submit(
            self._core,
            ids,
            max_new_tokens=self._room_of(len(ids), max_tokens),
            temperature=_optional_number("temperature", temperature, 0, 100),
            top_k=_optional_size("top_k", top_k, _LARGEST),
            top_p=_optional_number("top_p", top_p, 0, 1),
            min_p=_optional_number("min_p", min_p, 0, 1),
            repetition_penalty=_optional_number("repetition_penalty", repetition_penalty, 1e-3, 1000),
            frequency_penalty=_number("frequency_penalty", frequency_penalty, -2, 2),
            presence_penalty=_number("presence_penalty", presence_penalty, -2, 2),
            ends=self._ends if end_ids is None else self._end_ids(end_ids),
            seed=secrets.randbits(32) if seed is None else check_size("submit", "seed", seed, _LEAST, _LARGEST),
            top_log_probabilities=_optional_size("logprobs", logprobs, _MOST_TOP),
            adapter="" if adapter is None else _utf8("submit", "adapter", check_text("submit", "adapter", adapter)),
            response_format="" if response_format is None else self._json_of(response_format),
        )
        if core is None:
            raise QueueFull("submit: expected room in the queue, got none")
        return Reply(self, core, wants_log_probabilities=logprobs is not None, stops=stops)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("Engine: expected the process that made the engine, got a child of it")

    def _end_ids(self, values: Sequence[int]) -> list[int]:
        ids = _ids("end_ids", values)
        for place, token in enumerate(ids):
            if not 0 <= token < self._vocabulary:
                raise ValueError(f"submit: expected end_ids[{place}] from 0 to {self._vocabulary - 1}, got {token}")
        return ids

    def _room_of(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens that the reply may have."""
        room = self.context - prompt_tokens
        if room < 1:
            raise ValueError(
                f"submit: expected a prompt of less than the {self.context} tokens that it and its reply may have, got {prompt_tokens}"
            )
        return room if max_tokens is None else min(check_size("submit", "max_tokens", max_tokens, 1, _LARGEST), room)

    def _json_of(self, response_format: Mapping[str, Any]) -> str:
        if not isinstance(response_format, Mapping):
            raise TypeError(f"submit: expected response_format a mapping, got {shown(response_format)}")
        if self.tokenizer is None:
            raise ValueError("submit: expected a model with tokenizer.json for a response_format, got one without")
        try:
            text = json.dumps(dict(response_format), allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"submit: expected a response_format that JSON can say, got another: {error}") from None
        return _utf8("submit", "a response_format", text)

    def close(self) -> None:
        """Ends all replies, as their cancel() does. Returns when the step under way has ended."""
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise TypeError("Engine: expected an engine to stay in its process, got a pickle or a copy of it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
