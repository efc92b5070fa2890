"""Parts of torch that this package uses and torch does not promise: names with an underscore, each with its reason. The tests of
this file (python/tests/torch_internals_test.py) are the first to run on another torch. C++ has plimsoll/ops/torch_internals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import config
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

if TYPE_CHECKING:  # torch.distributed does not say that it exports it
    from torch._C._distributed_c10d import GradBucket
else:
    GradBucket = torch.distributed.GradBucket

__all__ = ["BatchNorm", "GradBucket", "tree_leaves", "tree_map", "tree_map_only"]

# The base of all batch norms, lazy and synchronized ones included; torch.nn exports those alone.
BatchNorm: TypeAlias = _BatchNorm

# A subclass of torch.Tensor with this as its __torch_function__ gets plain tensors' results, and costs no call of Python.
no_torch_function: Any = torch._C._disabled_torch_function_impl

# By the names that pickles of tensors hold.
REBUILD_TENSOR = (("torch._utils", "_rebuild_tensor_v2"), torch._utils._rebuild_tensor_v2)

# ops::kFreeKey of the library. An operator that asked would be one more for the dispatcher at each question.
_SCALED: Any = torch._C._parse_dispatch_key("Fake")


def is_fake(x: torch.Tensor) -> bool:
    """Whether x is of FakeTensor mode: sizes without memory, on any device by its own account."""
    return isinstance(x, FakeTensor)


def new_wrapper(
    cls: type[Any], like: torch.Tensor, dtype: torch.dtype, requires_grad: bool = False, device: torch.device | None = None
) -> Any:
    """A tensor of a subclass with the shape and strides of `like`, by default on its device, and no memory."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        like.shape,
        strides=like.stride(),
        storage_offset=like.storage_offset(),
        dtype=dtype,
        device=device or like.device,
        requires_grad=requires_grad,
    )


def set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """tensor.data = data, where a subclass has a property of its own in the place of torch's."""
    torch._C.TensorBase.data.__set__(tensor, data)  # type: ignore[attr-defined]


def mark_as_parameter(tensor: torch.Tensor) -> None:
    """The tensor stays the object that it is, and isinstance(tensor, torch.nn.Parameter) holds."""
    tensor._is_param = True


def outside_of_transforms(x: torch.Tensor) -> torch.Tensor:
    """The tensor that torch.func's transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def transform_around(x: torch.Tensor, parameters: Mapping[str, torch.Tensor | None]) -> str | None:
    """The transform of torch.func whose rules a call with these tensors would need: "grad", "jvp" or "vmap"; "forward AD" where one
    of them has a tangent. None: none. functionalize needs no rules, and vmap none for tensors that it has not wrapped."""
    if torch._C._functorch.peek_interpreter_stack() is None and forward_ad._current_level < 0:
        return None
    tensors = [tensor for tensor in (x, *parameters.values()) if tensor is not None]
    wrapped = any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))
    for level in reversed(torch._C._functorch.get_interpreter_stack() or []):
        name = level.key().name.lower()
        if name in ("grad", "jvp") or (name == "vmap" and wrapped):
            return name
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        return "forward AD"
    return None


def has_scaled_key(x: torch.Tensor) -> bool:
    """Whether autoscale's kernels see the tensor."""
    return bool(torch._C._dispatch_keys(x).has(_SCALED))


def schema_of(operator: Any) -> Any:
    """The schema of an operator that __torch_dispatch__ is called with."""
    return operator._schema


def guard_sizes() -> bool:
    """For torch.compile, which calls it while it traces: a graph is made again when a tensor of a module has another size, as an
    operator has given a history. Torch 2.11 would look for another tensor alone."""
    if torch.__version__ < "2.13":
        config.skip_tensor_guards_with_matching_dict_tags = False
    return True


# torch.compiler.assume_constant_result does no more, and would import the compiler.
guard_sizes._dynamo_marked_constant = True  # type: ignore[attr-defined]

# torch.utils.checkpoint without reentrance: (function, preserve_rng_state, context_fn, ...) -> a generator around its runs.
checkpoint_runs: Callable[..., Iterator[None]] = checkpoint._checkpoint_without_reentrant_generator


def replace_checkpoint_runs(runs: Callable[..., Iterator[None]]) -> None:
    """torch keeps no list of states that others could join, and looks the function up at each call."""
    checkpoint._checkpoint_without_reentrant_generator = runs
    composable = sys.modules.get("torch.distributed._composable.checkpoint_activation")
    if composable is not None:  # imported before, and so with a name of its own for it
        composable._checkpoint_without_reentrant_generator = runs  # type: ignore[attr-defined]
