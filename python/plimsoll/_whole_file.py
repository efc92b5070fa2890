"""Files that are there whole or not at all, however many processes write them; the rule is that of plimsoll/io/partial_file.h."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def _locks(file: int) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _has_name(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove_what_killed_writers_left(target: Path) -> None:
    partial = re.compile(re.escape(target.name) + r"\.[0-9a-f]{8}\.partial")
    with suppress(OSError):
        for name in [entry for entry in target.parent.iterdir() if partial.fullmatch(entry.name)]:
            with suppress(OSError):
                file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if _locks(file) and _has_name(file, name):
                        os.unlink(name)
                finally:
                    os.close(file)


def _open_partial(target: Path) -> tuple[int, Path]:
    while True:
        name = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = str(target)
            raise
        # Another writer may have taken it for what a killed one left. Where there are no locks, nobody does.
        _locks(file)
        if _has_name(file, name):
            return file, name
        os.close(file)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file of one's own to write to, which has the name `path` at the end of the block, flushed, or is removed where the
    block raises."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise OSError(f"{target}: expected a regular file or a free name to write to")
    _remove_what_killed_writers_left(target)
    file, name = _open_partial(target)
    try:
        yield name
        os.fsync(file)
        name.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            name.unlink()
        raise
    finally:
        os.close(file)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole_file(path) as name:
        name.write_text(text)
