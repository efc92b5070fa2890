"""Uses that a module's class makes of its children, read from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator

import torch


def _children(function: ast.AST) -> Iterator[tuple[str, bool]]:
    """For each self.CHILD: its name, and whether only the child's weight or bias is read there."""
    inner = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            inner[id(node.value)] = node.attr in ("weight", "bias")
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, inner.get(id(node), False)


@functools.cache
def bypassed_children(parent: type[torch.nn.Module]) -> frozenset[str]:
    """Names of the children whose parameters the class reads and that it uses in no other way: they are never called.
    Empty where there is no source to read."""
    read: set[str] = set()
    used: set[str] = set()
    for base in parent.__mro__:
        if base is torch.nn.Module:
            break
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            return frozenset()
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and "init" not in function.name and "reset_parameters" not in function.name:
                for name, parameters_only in _children(function):
                    (read if parameters_only else used).add(name)
    return frozenset(read - used)
