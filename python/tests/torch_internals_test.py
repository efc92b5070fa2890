"""The things that plimsoll/_torch_internals.py relies on, so that a new torch that does otherwise says so here."""

import io
import pickle
from typing import Any

import plimsoll._torch_internals as internals
import pytest
import torch
import torch._dynamo.testing
from plimsoll import autoscale
from torch._subclasses.fake_tensor import FakeTensorMode


class Wrapper(torch.Tensor):
    seen: Any
    __torch_function__ = internals.no_torch_function

    @staticmethod
    def __new__(cls, of):
        return internals.new_wrapper(cls, of, torch.bfloat16, requires_grad=True)

    def __init__(self, of):
        self.of = of

    data = property(lambda self: "its own")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]  # torch's is disabled
        cls.seen = func
        return internals.tree_map_only(Wrapper, lambda x: x.of, args)[0].neg()


def test_a_wrapper_has_a_shape_and_no_memory():
    made = Wrapper(torch.ones(2, 3))
    assert (made.shape, made.dtype, made.device.type, made.requires_grad) == ((2, 3), torch.bfloat16, "cpu", True)
    with pytest.raises(RuntimeError, match="storage"):
        made.untyped_storage().data_ptr()


def test_without_torch_function_an_operator_goes_to_the_dispatch_and_has_a_schema():
    result = torch.relu(Wrapper(torch.ones(2)))
    assert type(result) is torch.Tensor and torch.equal(result, -torch.ones(2))
    assert [argument.name for argument in internals.schema_of(Wrapper.seen).arguments] == ["self"]
    assert internals.schema_of(torch.ops.aten.add_.Tensor).arguments[0].alias_info.is_write


def test_the_data_of_a_tensor_with_a_property_of_that_name_are_set():
    made = Wrapper(torch.ones(2))
    other = internals.new_wrapper(Wrapper, torch.ones(2), torch.float32, requires_grad=False)
    assert made.data == "its own"
    internals.set_data(made, other)
    assert made.dtype == torch.float32


def test_a_marked_tensor_is_a_parameter_and_the_object_that_it_was():
    tensor = torch.ones(2, requires_grad=True)
    assert not isinstance(tensor, torch.nn.Parameter)
    internals.mark_as_parameter(tensor)
    assert isinstance(tensor, torch.nn.Parameter)
    module = torch.nn.Module()
    module.register_parameter("weight", tensor)
    assert module.weight is tensor


def test_what_transforms_wrap_is_found():
    inside = []

    def look(x):
        inside.append(internals.outside_of_transforms(x))
        return x.sum()

    x = torch.arange(6.0).view(2, 3)
    torch.vmap(torch.func.grad(look))(x)
    assert torch.equal(inside[0], x)
    assert internals.outside_of_transforms(x) is x


def test_the_transform_around_a_call_is_found():
    def look(x):
        around.append(internals.transform_around(x, {"bias": None}))
        return x.sum()

    around: list[Any] = []
    x = torch.ones(2, 3)
    look(x)
    torch.func.functionalize(look)(x)
    torch.vmap(lambda row: look(x) + row)(x)
    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.vmap(torch.func.grad(look))(x)
    with torch.autograd.forward_ad.dual_level():
        look(x)
        look(torch.autograd.forward_ad.make_dual(x, x))
    assert around == [None, None, None, "vmap", "grad", "jvp", "grad", None, "forward AD"]


def test_scaled_tensors_alone_carry_the_key():
    assert internals.has_scaled_key(autoscale.as_scaled(torch.ones(4)))
    assert not internals.has_scaled_key(torch.ones(4))


def test_tensors_of_fake_mode_alone_are_fake():
    with FakeTensorMode():
        assert internals.is_fake(torch.ones(4))
    assert not internals.is_fake(torch.ones(4)) and not internals.is_fake(torch.ones(4, device="meta"))


def test_pickles_of_tensors_name_the_function_that_is_read():
    names = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            names.append((module, name))
            return super().find_class(module, name)

    Unpickler(io.BytesIO(pickle.dumps(torch.ones(2)))).load()
    name, function = internals.REBUILD_TENSOR
    assert name in names
    storage = torch.ones(4).untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    assert torch.equal(function(typed, 1, (2,), (1,), False, None), torch.ones(2))


def test_batch_norms_have_one_base():
    norms = (torch.nn.BatchNorm1d(2), torch.nn.SyncBatchNorm(2), torch.nn.LazyBatchNorm2d())
    assert all(isinstance(each, internals.BatchNorm) for each in norms)
    assert not isinstance(torch.nn.LayerNorm(2), internals.BatchNorm)


def test_trees_are_mapped_and_listed():
    tree = {"a": [1, (2.0, None)], "b": torch.ones(1)}
    assert internals.tree_leaves({"a": [1, (2.0,)]}) == [1, 2.0]
    assert internals.tree_map(lambda x: x, tree) == tree
    assert internals.tree_map_only(int, lambda x: x + 1, [1, (2.0, 3)]) == [2, (2.0, 4)]


def test_the_runs_of_a_checkpoint_are_looked_up_at_each_call():
    now = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    called = []

    def runs(*args, **kwargs):
        called.append(args[0])
        yield from now(*args, **kwargs)

    x = torch.ones(2, requires_grad=True)
    try:
        internals.replace_checkpoint_runs(runs)
        torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    finally:
        internals.replace_checkpoint_runs(now)
    assert len(called) == 1 and x.grad is not None and torch.equal(x.grad, torch.cos(torch.ones(2)))


def test_a_graph_is_made_again_when_a_tensor_of_the_module_has_another_size():
    class Module(torch.nn.Module):
        kept: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(1))

        def forward(self, x):
            internals.guard_sizes()
            return x + self.kept.numel()

    module, counter = Module(), torch._dynamo.testing.CompileCounter()
    with torch._dynamo.config.patch(skip_tensor_guards_with_matching_dict_tags=True):
        compiled = torch.compile(module, fullgraph=True, backend=counter)
        for size in (1, 3, 3):
            module.kept.data = torch.ones(size)
            assert compiled(torch.zeros(1)).item() == size
    assert counter.frame_count == 2


def test_buckets_of_gradients_are_those_that_hooks_get():
    assert internals.GradBucket is torch.distributed.GradBucket
