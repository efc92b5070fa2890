"""Conversations as text, by any chat template: see :func:`render_chat`."""

from plimsoll.tokenize.chat import render_chat

__all__ = ["render_chat"]
