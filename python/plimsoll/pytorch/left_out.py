"""Names of Transformer Engine that are not here, each with what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn


def _left_out(name: str, instead: str) -> Any:
    def function(*_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotImplementedError(f"plimsoll.pytorch.{name} is left out; {instead}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Left out; {instead}."
    return function


make_graphed_callables = _left_out("make_graphed_callables", "CUDA graphs have no counterpart on a CPU: call the module")
onnx_export = _left_out("onnx_export", "export the model with torch.nn's modules and the same weights")
