"""Our checkpoints from Hugging Face's files, and back. safetensors is imported by who asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from plimsoll._files import expect_regular, read_text
from plimsoll._whole_file import whole_file
from plimsoll.shard.sharded_checkpoint import CheckpointSaver, open_checkpoint

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def from_safetensors(source: str | Path, run: str | Path, step: int = 0) -> Path:
    """Writes a file, or a directory with model.safetensors or its shards, as the section "model" of RUN/step-NNNNNNNN, which any
    number of ranks loads, and returns that. By one process. Raises ValueError, which names what the files lack."""
    from safetensors import safe_open

    tensors: dict[str, torch.Tensor] = {}
    for file, names in _files_of(Path(source)).items():
        expect_regular(file)
        with safe_open(str(file), "pt") as opened:
            missing = sorted(names - set(opened.keys()))
            if missing:
                raise ValueError(f"{file}: expected {missing}, which its index places there")
            tensors.update({name: opened.get_tensor(name) for name in (names or opened.keys())})
    CheckpointSaver(run, keep=1 << 30).save(step, {"model": tensors})
    return Path(run) / f"step-{step:08}"


def to_safetensors(checkpoint: str | Path, file: str | Path, section: str = "model") -> None:
    """Writes a section of a step as one file; `plimsoll consolidate` does so, too."""
    from safetensors.torch import save_file

    opened = open_checkpoint(checkpoint)
    tensors = opened.section(section)
    with whole_file(file) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
        opened.check_files()


def _files_of(source: Path) -> dict[Path, set[str]]:
    """The tensors that each file is to hold; none named: all that it does."""
    if not source.is_dir():
        return {source: set()}
    if (source / _WHOLE).exists():
        return {source / _WHOLE: set()}
    index = source / _INDEX
    if not index.exists():
        raise FileNotFoundError(f"{source}: expected {_WHOLE} or {_INDEX}")
    found = json.loads(read_text(index))
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index}: expected an object with a weight_map {{tensor: file}}")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if not _is_beside(file):
            raise ValueError(f"{index}: tensor {name!r}: expected a file beside the index, got {file!r}")
        files.setdefault(source / file, set()).add(name)
    return files


def _is_beside(name: object) -> bool:
    """The rule of io/hugging_face_directory.cpp: a plain name. It may be a link to elsewhere, as in Hugging Face's cache."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\0"}
