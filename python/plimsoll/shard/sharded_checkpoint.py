"""Checkpoints that any number of processes save together and any other number loads: those of ``plimsoll train``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from plimsoll.shard.ranks import Ranks, ranks_of, this_process_alone

Sections = Mapping[str, Mapping[str, "torch.Tensor | Piece"]]


class Piece(NamedTuple):
    """Part of a tensor that this rank alone holds: its elements from `begin` on, flattened."""

    values: torch.Tensor
    shape: tuple[int, ...]  # of the whole tensor
    begin: int


def _ranks(group: Any) -> Ranks:
    """A process without torch.distributed is alone."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return this_process_alone()
    return ranks_of(group)


def _json_of(state: dict[str, Any]) -> str:
    """A state as C++ reads it again: without NaN, infinities and halves of characters."""

    def text_of(value: dict[str, Any]) -> str:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return text

    for key, value in state.items():
        try:
            text_of({key: value})
        except (TypeError, ValueError, RecursionError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"CheckpointSaver.save: expected a state as JSON takes it, got of {key!r}: {error}") from None
    return text_of(state)


class CheckpointSaver:
    """Saves the checkpoints of a run, RUN/step-00000123, one after another.

    Each rank writes its part; a checkpoint is there whole or not at all, and a rank that dies meanwhile leaves the one
    before. A full disk on one rank is a RuntimeError on all.

    Args:
        run: a directory that all ranks see.
        group: of torch.distributed; all ranks if None, or this process alone where there are none.
        keep: checkpoints that stay, of steps up to the one saved; 1 or more. Those of higher steps stay, too.
        asynchronous: save() copies the tensors and returns, and a thread writes them. The copy's memory is kept.
    """

    def __init__(self, run: str | Path, group: Any = None, keep: int = 3, asynchronous: bool = False) -> None:
        self._ranks = ranks = _ranks(group)
        if asynchronous and ranks.size > 1:
            ranks = ranks.split("checkpoint")  # another thread is the caller
        self._saver = torch.ops.plimsoll.checkpoint_saver(str(run), ranks.handle, keep=keep, asynchronous=asynchronous)

    def save(self, step: int, sections: Sections, state: Mapping[str, Any] | None = None) -> None:
        """A collective.

        Args:
            sections: {"model": {name: tensor}, "optimizer": ...}. Tensors are the same on all ranks, which share the
                writing; :class:`Piece` s of all ranks cover a tensor once.
            state: what is no tensor, as JSON takes it; the first rank's counts.

        Raises:
            TypeError, ValueError: on all ranks, a member of the first rank's state that JSON does not take, which is named.
        """
        text = self._state_text(state)
        wholes, pieces = [], []
        for section, tensors in sections.items():
            for name, value in tensors.items():
                if isinstance(value, Piece):
                    pieces.append((section, name, list(value.shape), value.begin, value.values.detach().cpu()))
                else:
                    wholes.append((section, name, value.detach().cpu()))
        self._saver.save(step, text, wholes, pieces)

    def _state_text(self, state: Mapping[str, Any] | None) -> str:
        """JSON of the state on the first rank, whose error is one on all ranks; an empty object elsewhere."""
        text, error = "{}", None
        if self._ranks.rank == 0:
            try:
                text = _json_of(dict(state or {}))
            except (TypeError, ValueError) as found:
                error = found
        errors: Any = self._ranks.gather(error)
        if errors[0] is not None:
            raise errors[0]
        return text

    def wait(self) -> None:
        """Returns when everything is on disk. Raises what the last saving failed with."""
        self._saver.wait()


class Checkpoint:
    """One that is open: what it holds, whole or any range of it. Tensors are read from the files when they are touched."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.step: int = opened.step()
        self.world_size: int = opened.world_size()  # of the processes that saved it
        self.directory = Path(opened.directory())
        self.state: dict[str, Any] = json.loads(opened.state())
        self.refused: list[str] = opened.refused()  # a line for each newer checkpoint that is damaged
        self.shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for section, name, _, shape in opened.tensors():
            self.shapes.setdefault(section, {})[name] = tuple(shape)

    def read(self, section: str, name: str, begin: int | None = None, end: int | None = None) -> torch.Tensor:
        """The whole tensor, or elements begin to end of it, flattened."""
        if begin is None or end is None:
            whole: torch.Tensor = self.opened.read(section, name)
            return whole
        elements: torch.Tensor = self.opened.read_range(section, name, begin, end)
        return elements

    def check_files(self) -> None:
        """Raises RuntimeError where a file has lost bytes since it was opened, which were read as zeros."""
        self.opened.check_files()

    def section_shapes(self, section: str) -> dict[str, tuple[int, ...]]:
        if section not in self.shapes:
            raise KeyError(f"{self.directory}: expected one of the sections {sorted(self.shapes)}, got {section!r}")
        return self.shapes[section]

    def section(self, section: str) -> dict[str, torch.Tensor]:
        return {name: self.read(section, name) for name in self.section_shapes(section)}


def open_checkpoint(directory: str | Path) -> Checkpoint:
    """One step's directory. Raises RuntimeError, which names the file that is missing or altered."""
    return Checkpoint(torch.ops.plimsoll.open_checkpoint(str(directory)))


def open_latest_checkpoint(run: str | Path, group: Any = None) -> Checkpoint | None:
    """A collective: the newest good checkpoint of a run, the same one on all ranks; None if there is none."""
    opened = torch.ops.plimsoll.open_latest_checkpoint(str(run), _ranks(group).handle)
    return None if opened is None else Checkpoint(opened)
