"""The base of scopes that no exception leaves open, a KeyboardInterrupt between two instructions included. C++ has the one
stack of them (plimsoll/bind/scopes.cpp)."""

from __future__ import annotations

import ctypes
import functools
import threading
import types
from collections.abc import Callable
from typing import Any, Self

import torch

from plimsoll._library import NAME, find

_scopes_of_thread = torch.ops.plimsoll.scopes_of_thread.default
_finish = torch.ops.plimsoll.finish_left_scope.default

# PyDLL: the interpreter runs nothing else meanwhile, a signal's handler neither.
_library = ctypes.PyDLL(str(find() / NAME))
_leave, _drop = _library["plimsoll_leave_scope"], _library["plimsoll_leave_scope"]  # two objects of ctypes
for each in (_leave, _drop):
    each.argtypes = (ctypes.c_void_p, *[ctypes.py_object] * 4)
    each.restype = ctypes.c_int64
_abandon = _library.plimsoll_abandon_scopes
_abandon.argtypes = (ctypes.c_int64,)
_abandon.restype = None

after_leaving: list[Callable[[], object]] = []  # what a state kept in Python follows the library's with
_innermost = torch.ops.plimsoll.innermost_fp8_scope.default


class _Numbers(threading.local):
    """Things that FP8 scopes of the thread show to Python, by the library's number. Scopes inside have larger ones."""

    def __init__(self) -> None:
        self.shown: dict[int, Any] = {}


class _Thread(threading.local):
    """A copy for torch.compile, which guards objects of Python and no state of C++. Torch 2.11 would read an attribute of the
    class in the place of the thread's, so there is none."""

    def __init__(self) -> None:
        self.in_force: Any = None


_numbers, _thread = _Numbers(), _Thread()


def in_force() -> Any:
    """The thing that the innermost FP8 scope of this thread shows; None outside all."""
    if torch.compiler.is_compiling():
        return _thread.in_force
    innermost, shown = _innermost(), _numbers.shown
    while shown and next(reversed(shown)) > innermost:
        shown.popitem()
    _thread.in_force = shown.get(innermost)
    return _thread.in_force


def show(number: int, shown: Any) -> None:
    """From now on the scope with this number, the innermost one, shows it."""
    _numbers.shown[number] = _thread.in_force = shown


after_leaving.append(in_force)


def _left(result: int, _function: Any, _arguments: Any) -> None:
    """After the scope has been left: what an interrupt here leaves out would have changed no state, either."""
    for follow in after_leaving:
        follow()
    if result < 0:
        raise RuntimeError("scope: expected one that this thread has entered and not left, got none")
    if result > 0:
        _finish()


_leave.errcheck = _left  # type: ignore[assignment]


class _Leaving(property):
    """`__exit__` that `with` finds and calls without an instruction of Python. On the class it is a function, as
    contextlib.ExitStack calls it."""

    def __call__(self, scope: Scope, *error: Any) -> None:
        self.__get__(scope)(*error)


class Scope:
    """A context manager that is open between `_open` and the end of its `with`, or of this object, which `with` holds: what
    an interrupt in contextlib's own code forgets ends so. May be entered again inside itself."""

    @property
    def _owner(self) -> int:
        return id(self)

    def _open(self) -> None:
        """Calls an operator that enters a scope of `self._owner`, and nothing after it that may fail."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        before = _scopes_of_thread()
        try:
            self._open()
            return self
        except BaseException:
            _abandon(before)
            for follow in after_leaving:
                follow()
            raise

    __exit__ = _Leaving(functools.partial(types.MethodType, functools.partial(_leave, id(None))))

    def __del__(self) -> None:
        while _drop(id(None), self, GeneratorExit, None, None) >= 0:
            pass
