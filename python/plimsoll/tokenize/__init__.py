"""Tokenizers of models' directories, and conversations as text: see :class:`Tokenizer` and :func:`render_chat`."""

from plimsoll.tokenize.chat import render_chat
from plimsoll.tokenize.tokenizer import Tokenizer

__all__ = ["Tokenizer", "render_chat"]
