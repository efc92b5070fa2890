"""Choice of the modules that become units: fairscale's rules."""

import functools
from typing import Any

import pytest
from plimsoll.shard import auto_wrap, config_auto_wrap_policy, default_auto_wrap_policy, enable_wrap, wrap
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, module, **options):
        super().__init__()
        self.module, self.options = module, options


def layers():
    return nn.Sequential(nn.Linear(10, 10), nn.Linear(2, 2), nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10)))


def wrapped_paths(model):
    paths = [path for path, module in model.named_modules() if isinstance(module, Wrapper)]
    return sorted(".".join(part for part in path.split(".") if part != "module") for path in paths)


def policy(count, **more):
    return functools.partial(default_auto_wrap_policy, min_num_params=count, **more)


def test_outside_a_scope_nothing_is_wrapped():
    module = nn.Linear(2, 2)
    assert wrap(module) is module and auto_wrap(module) is module


def test_arguments_of_the_call_win_over_those_of_the_module_and_of_the_scope():
    module: Any = nn.Linear(2, 2)
    module.wrapper_config = {"b": 2, "c": 2}
    with enable_wrap(wrapper_cls=Wrapper, a=1, b=1, c=1):
        assert wrap(module, c=3).options == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (policy(110), ["0", "2.0", "2.1"]),
        (policy(200), ["2"]),
        (policy(330), [""]),
        (policy(110, force_leaf_modules={nn.Sequential}), []),
        (policy(110, exclude_wrap_modules={nn.Linear}), ["", "2"]),
        (policy(10**6), []),
        (policy(200, skip_params_check_for_root=True), ["", "2"]),
    ],
)
def test_default_policy(rule, expected):
    with enable_wrap(auto_wrap_policy=rule, wrapper_cls=Wrapper):
        assert wrapped_paths(auto_wrap(layers())) == expected


def test_modules_with_a_config_are_wrapped():
    model = layers()
    model[1].wrapper_config = {"a": 1}
    with enable_wrap(wrapper_cls=Wrapper):
        model = auto_wrap(model, config_auto_wrap_policy)
    assert wrapped_paths(model) == ["1"] and list(model.children())[1].options == {"a": 1}


def test_scopes_do_not_nest():
    with enable_wrap(wrapper_cls=Wrapper), pytest.raises(NotImplementedError), enable_wrap(wrapper_cls=Wrapper):
        pass
