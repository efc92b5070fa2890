"""The base of models' results, with the members and the order of transformers' class of this name."""

from __future__ import annotations

from typing import Any, ClassVar


class ModelOutput(dict[str, Any]):
    """Members by attribute, which is None where one was not computed; and, of those that were, by name or place, as in
    transformers."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._names = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(*values, **named)
        if unknown := given.keys() - set(self._names):
            raise TypeError(f"{type(self).__name__}: expected {', '.join(self._names)}, got {', '.join(sorted(unknown))}")
        super().__init__((name, given[name]) for name in self._names if given.get(name) is not None)

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"{type(self).__name__} has no member {name}")
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())
