"""Reads tensors out of pickles without running what the pickles name."""

from __future__ import annotations

import collections
import io
import pickle
from types import SimpleNamespace
from typing import Any

import torch

from plimsoll._torch_internals import REBUILD_TENSOR


class Inert:
    """In place of an object of any class that is not read: takes whatever it is made of and does nothing."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass


def _tensors_from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


# By the names that pickles of tensors hold.
_READ: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    REBUILD_TENSOR[0]: REBUILD_TENSOR[1],
    ("torch.storage", "_load_from_bytes"): _tensors_from_bytes,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    **{
        ("torch", f"{name}Storage"): getattr(torch, f"{name}Storage")
        for name in ("Float", "Half", "BFloat16", "Byte", "Long", "Int")
    },
}
# Transformer Engine's recipes, whose fields nobody asks for.
_INERT = ("transformer_engine",)


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (found := _READ.get((module, name))) is not None:
            return found
        if module.split(".")[0] in _INERT:
            return Inert
        raise pickle.UnpicklingError(f"expected tensors alone, got {module}.{name}")


def _load(file: Any, **keywords: Any) -> Any:
    return Unpickler(file, **keywords).load()


# Object that torch.load takes for the module pickle.
_PICKLE: Any = SimpleNamespace(Unpickler=Unpickler, load=_load, __name__="restricted")
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # what torch.save wrote first before it wrote archives


def load(data: bytes) -> Any:
    """Object that pickle.dumps or torch.save has written. Raises pickle.UnpicklingError for anything but tensors, containers,
    numbers, text and Transformer Engine's recipes, which come out as Inert."""
    is_archive = data.startswith(b"PK\x03\x04")
    if is_archive and b"constants.pkl" in data:
        raise pickle.UnpicklingError("expected tensors alone, got TorchScript")
    if is_archive or data.startswith(LEGACY):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False, pickle_module=_PICKLE)
    return _load(io.BytesIO(data))
