"""Instances of torch's DistributedDataParallel, whose reducer averages a gradient after all hooks of the parameter have run."""

import gc
import weakref
from collections.abc import Sequence

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

_alive: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def averaging_module_of(parameters: Sequence[torch.Tensor]) -> torch.nn.Module | None:
    """One that averages the gradient of at least one of the parameters, if there is any."""
    wanted = {id(parameter) for parameter in parameters if parameter.requires_grad}
    for module in list(_alive):
        if any(id(parameter) in wanted for parameter in module.parameters()):
            return module
    return None


def _note(module: torch.nn.Module, name: str, part: torch.nn.Module | None) -> None:
    if isinstance(module, DistributedDataParallel):
        _alive.add(module)


# Nothing on a parameter tells that a reducer waits for it.
register_module_module_registration_hook(_note)
if torch.distributed.is_available() and torch.distributed.is_initialized():  # some may have been made before this import
    for each in gc.get_objects():
        if issubclass(type(each), DistributedDataParallel):
            _alive.add(each)
