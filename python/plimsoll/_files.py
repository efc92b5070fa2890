"""The door for files that Python reads: regular ones of a size that fits, and no waiting for a named pipe or a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

TEXT_LIMIT = 1 << 30  # bytes; a log of a million steps has about a third


def expect_regular(path: str | os.PathLike[str]) -> None:
    """Raises ValueError where a name is anything but a regular file, FileNotFoundError where it is none's."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
        kind = next((name for is_kind, name in kinds if is_kind(mode)), "a device")
        raise ValueError(f"{os.fspath(path)}: expected a regular file, got {kind}")


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The file as UTF-8. Raises ValueError for other files than regular ones and for those of more than `limit` bytes."""
    expect_regular(path)
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{path}: expected a file of at most {limit} bytes, got {size}")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(size).decode()
