"""Text to the ids of a model's vocabulary and back, by the tokenizer.json in the model's directory."""

import operator
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from plimsoll.tokenize.chat import render_chat


class Tokenizer:
    """The tokenizer of a model's directory. Ids and text are those of Hugging Face's `tokenizers`. Threads may share one."""

    def __init__(self, directory: str | pathlib.Path) -> None:
        self._directory = pathlib.Path(directory)
        self._core = torch.classes.plimsoll.Tokenizer(str(directory), 0)

    @classmethod
    def from_pretrained(cls, directory: str | pathlib.Path) -> "Tokenizer":
        """Reads tokenizer.json and tokenizer_config.json. Raises RuntimeError, which says what is wrong with them."""
        return cls(directory)

    @classmethod
    def _of_t5(cls, directory: pathlib.Path, vocabulary: int) -> "Tokenizer":
        """The tokenizer of a T5 of so many tokens, by its spiece.model."""
        tokenizer = cls.__new__(cls)
        tokenizer._directory = directory
        tokenizer._core = torch.classes.plimsoll.Tokenizer(str(directory), vocabulary)
        return tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens that stand in the text are tokens with either choice; the choice is about those around it."""
        return list(self._core.encode(_text("encode", text), add_special_tokens))

    def decode(self, ids: Sequence[int] | torch.Tensor, *, skip_special_tokens: bool = True) -> str:
        """Ids that are not below len(self) are a RuntimeError."""
        return str(self._core.decode(_integers(ids), not skip_special_tokens))

    def stream(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> Iterator[str]:
        """The text of ids as they come, in pieces of whole characters; together what decode() makes of all."""
        stream = torch.classes.plimsoll.DecodeStream(self._core, not skip_special_tokens)
        for token in ids:
            if piece := stream.next(_integer("stream", token)):
                yield piece
        if piece := stream.finish():
            yield piece

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = False, tokenize: bool = True, **variables: Any
    ) -> list[int] | str:
        """A conversation as ids, or with tokenize=False as text: see :func:`plimsoll.tokenize.render_chat`."""
        text = render_chat(self._directory, messages, add_generation_prompt=add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def token_to_id(self, token: str) -> int | None:
        return self._core.token_to_id(_text("token_to_id", token))  # type: ignore[no-any-return]

    def id_to_token(self, token_id: int) -> str | None:
        return self._core.id_to_token(_integer("id_to_token", token_id))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        """Ids are below this."""
        return int(self._core.size())

    @property
    def bos_token_id(self) -> int | None:
        return self._core.bos()  # type: ignore[no-any-return]

    @property
    def eos_token_id(self) -> int | None:
        return self._core.eos()  # type: ignore[no-any-return]


def _text(call: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{call}: expected a str, got {text!r}")
    return text


def _integer(call: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{call}: expected an id, an integer, got {number!r}") from None


def _integers(ids: Any) -> list[int]:
    if isinstance(ids, torch.Tensor) and ids.dim() == 1:
        ids = ids.tolist()
    if isinstance(ids, str | torch.Tensor) or not isinstance(ids, Iterable):
        raise TypeError(f"decode: expected ids, one sequence of integers, got {ids!r}")
    return [_integer("decode", number) for number in ids]
