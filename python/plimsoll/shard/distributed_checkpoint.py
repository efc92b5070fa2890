"""Our checkpoints as those of torch.distributed.checkpoint (DCP), and back. DCP is imported by who asks for it: it takes
longer than all of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plimsoll.shard.sharded_checkpoint import Checkpoint, CheckpointSaver, open_checkpoint

_STATE = "state"


def to_distributed_checkpoint(checkpoint: str | Path, directory: str | Path) -> None:
    """Writes a step's directory as a DCP directory: tensors are "SECTION.NAME", what is no tensor is "state". A file that loses
    bytes meanwhile is a RuntimeError, before the directory is marked as whole."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Writer(FileSystemWriter):
        checkpoint: Checkpoint

        def finish(self, metadata: Any, results: Any) -> None:
            try:
                self.checkpoint.check_files()
            except RuntimeError:  # the same check raises it again below, where DCP does not wrap it
                return
            super().finish(metadata, results)

    ours = open_checkpoint(checkpoint)
    tensors = {f"{section}.{name}": ours.read(section, name) for section, names in ours.shapes.items() for name in names}
    writer = Writer(str(directory))
    writer.checkpoint = ours
    save({**tensors, _STATE: {**ours.state, "step": ours.step}}, storage_writer=writer, no_dist=True)
    ours.check_files()


def from_distributed_checkpoint(directory: str | Path, run: str | Path, step: int | None = None) -> Path:
    """Writes a DCP directory, of any number of ranks, as RUN/step-NNNNNNNN and returns that.

    What stands before the first "." of a name is its section; a name without one is of the section "model". `step`: if the
    directory does not say.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(str(directory)).read_metadata().state_dict_metadata
    loaded: dict[str, Any] = {}
    for name, kind in metadata.items():
        if isinstance(kind, TensorStorageMetadata):
            loaded[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
        elif isinstance(kind, BytesStorageMetadata):
            loaded[name] = None
    load(loaded, checkpoint_id=str(directory), no_dist=True)
    sections: dict[str, dict[str, torch.Tensor]] = {}
    state: dict[str, Any] = {}
    for name, value in loaded.items():
        section, dot, rest = name.partition(".")
        if isinstance(value, torch.Tensor):
            sections.setdefault(section if dot else "model", {})[rest if dot else name] = value
        else:
            state[rest if section == _STATE and dot else name] = value
    step = state.pop("step", None) if step is None else step
    if step is None:
        raise ValueError(f"{directory}: expected `step`, of which the directory says nothing")
    CheckpointSaver(run, keep=1 << 30).save(step, sections, state)
    return Path(run) / f"step-{step:08}"
