"""Parameters under transformers' names whose memory is part of one matrix in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from plimsoll._torch_internals import mark_as_parameter


class Layout(NamedTuple):
    """The place of a part in a contiguous whole."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, part: torch.Tensor, whole: torch.Tensor) -> Layout:
        return cls(tuple(part.size()), part.stride(), int(part.storage_offset() - whole.storage_offset()))

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        whole = whole.contiguous()
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.offset)


class JoinedParameter:
    """whole: a parameter of C++, which alone is in the graph. parts: views of its memory, parameters of their own. Backward
    moves the gradient of the whole to those of its parts, where it adds up as torch's own would."""

    def __init__(self, whole: torch.Tensor, views: dict[str, torch.Tensor]) -> None:
        self.whole = whole
        self.layouts = [Layout.of(view, whole) for view in views.values()]
        self.parts = dict(views)
        for view in views.values():
            mark_as_parameter(view.requires_grad_(whole.requires_grad))
        whole.register_post_accumulate_grad_hook(_hand_over(list(self.parts.values()), self.layouts))

    def follow_requires_grad(self) -> None:
        """The whole has a gradient if one of its parts wants one."""
        self.whole.requires_grad_(any(part.requires_grad for part in self.parts.values()))

    def convert(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Module.to() and its like: converts the whole, and makes the parts views of it again."""
        with torch.no_grad():
            self.whole.data = function(self.whole.data)
            for part, layout in zip(self.parts.values(), self.layouts, strict=True):
                part.data = layout.part_of(self.whole.data)


def _hand_over(parts: list[torch.Tensor], layouts: list[Layout]) -> Callable[[torch.Tensor], None]:
    # The hook belongs to the whole: a reference to that from here would be a cycle which nothing collects.
    @torch.no_grad()
    def hand_over(whole: torch.Tensor) -> None:
        grad, whole.grad = whole.grad, None
        if grad is None:
            return
        for part, layout in zip(parts, layouts, strict=True):
            if not part.requires_grad:
                continue
            if part.grad is None:
                part.grad = layout.part_of(grad)
            else:
                part.grad += layout.part_of(grad)

    return hand_over
