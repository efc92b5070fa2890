"""Ordinary user code under autoscale, against the same on plain tensors: resampling, recurrent layers, assignment by index,
sparse embeddings, Adafactor."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from rounded_results import RoundedResults
from rounding import gamma, rounds_alike, within
from torch import nn


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near(ours: torch.Tensor, expected: torch.Tensor, roundings: int = 4) -> bool:
    """To that many roundings of FP16 of the largest element."""
    return bool((autoscale.value(ours) - expected).abs().amax() <= roundings * 2.0**-11 * expected.abs().amax())


def three_runs(model: nn.Module) -> list[tuple[Any, Callable[[], Any]]]:
    """The model under autoscale, where torch rounds every result to FP16's significand, and in FP32; with scopes of passes."""
    return [
        (autoscale.autoscale(copy.deepcopy(model)), contextlib.nullcontext),
        (copy.deepcopy(model), lambda: RoundedResults(11)),
        (model, contextlib.nullcontext),
    ]


def without_rule(x) -> list[str]:
    return autoscale.report(x).without_rule


UPSAMPLES = {
    "nearest of sequences": (nn.Upsample(scale_factor=3), (2, 3, 5)),
    "nearest": (nn.Upsample(scale_factor=2), (2, 3, 4, 5)),
    "nearest to a size": (nn.Upsample(size=(7, 3)), (2, 3, 4, 5)),
    "nearest of volumes": (nn.Upsample(scale_factor=2), (1, 2, 3, 2, 4)),
    "nearest-exact": (nn.Upsample(scale_factor=1.5, mode="nearest-exact"), (2, 3, 4, 6)),
    "linear": (nn.Upsample(scale_factor=2, mode="linear"), (2, 3, 5)),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (2, 3, 4, 5)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 4, 5)),
    "trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 3, 2, 4)),
}


@pytest.mark.parametrize("exponent", [-30, 0, 40])
@pytest.mark.parametrize("name", UPSAMPLES)
def test_upsample_and_its_gradient_are_those_of_plain_tensors(name, exponent):
    layer, shape = UPSAMPLES[name]
    plain = (random(*shape) * 2.0**exponent).requires_grad_()
    x: Any = autoscale.as_scaled(plain.detach()).requires_grad_()
    expected, ours = layer(plain), layer(x)
    weight = random(*expected.shape, seed=1)
    (expected * weight).sum().backward()
    (ours * weight).sum().backward()
    assert near(ours, expected) and near(x.grad, plain.grad) and without_rule(x) == []


RECURRENT = {
    "LSTM": lambda: nn.LSTM(6, 8, num_layers=2),
    "LSTM both ways": lambda: nn.LSTM(6, 8, bidirectional=True, batch_first=True),
    "LSTM with a projection": lambda: nn.LSTM(6, 8, proj_size=4),
    "GRU": lambda: nn.GRU(6, 8, num_layers=2, bidirectional=True),
    "RNN": lambda: nn.RNN(6, 8, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_trains_as_on_plain_tensors(name):
    torch.manual_seed(1)
    runs = three_runs(RECURRENT[name]())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each, _ in runs]
    losses = []
    for _step in range(8):
        x, losses_of_step = random(5, 3, 6, seed=0), []
        for (each, scope), optimizer in zip(runs, optimizers, strict=True):
            optimizer.zero_grad()
            with scope():
                output, state = each(x)
                loss = (output[..., :4] - x[..., :4]).square().mean() + sum(h.square().mean() for h in state)
                loss.backward()
            optimizer.step()
            losses_of_step.append(loss.item())
        losses.append(losses_of_step)
    assert losses[-1][-1] < losses[0][-1]
    assert rounds_alike(*torch.tensor(losses).T)
    assert without_rule(runs[0][0]) == []


def test_a_recurrent_layer_reads_packed_sequences():
    torch.manual_seed(2)
    reference: Any = nn.LSTM(4, 6)
    model: Any = autoscale.autoscale(copy.deepcopy(reference))
    sequences = [random(n, 4, seed=n) for n in (5, 3, 2)]
    packed = nn.utils.rnn.pack_sequence(sequences)
    expected, _ = nn.utils.rnn.pad_packed_sequence(reference(packed)[0])
    ours, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
    assert near(ours, expected.detach(), 16)


ASSIGNMENTS = {
    "a number at indices": lambda x: x.__setitem__(torch.tensor([1, 3]), 5.0),
    "a number in a slice": lambda x: x.__setitem__((slice(1, 3), 0), -2.5),
    "rows at indices": lambda x: x.__setitem__(torch.tensor([0, 2]), x[torch.tensor([3, 1])] * 4),
    "where a mask is": lambda x: x.__setitem__(x > 0, x[x > 0] * 0.5),
    "a number where a mask is": lambda x: x.__setitem__(x < 0, 0.0),
    "a plain tensor": lambda x: x.__setitem__((torch.tensor([1, 1]), torch.tensor([0, 4])), torch.tensor([3.0, 9.0])),
    "accumulated": lambda x: x.index_put_((torch.tensor([1, 1]),), torch.ones(2, 6), accumulate=True),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([[0, 1, 2, 0, 1, 2]]), x[3:] * 8),
    "scatter_ of a number": lambda x: x.scatter_(1, torch.tensor([[0], [2], [4], [5]]), 3.25),
    "scatter_ that multiplies": lambda x: x.scatter_(0, torch.tensor([[0] * 6]), x[1:2].clone(), reduce="multiply"),
    "scatter_ that adds a number": lambda x: x.scatter_(0, torch.tensor([[0] * 6]), 2.5, reduce="add"),
    "scatter_add_": lambda x: x.scatter_add_(0, torch.tensor([[1] * 6]), x[:1].clone()),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, torch.tensor([[1] * 6]), x[:1].clone(), "amax"),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([0, 5]), 1.5),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([2]), x[:1].clone()),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 2.0),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, x.flatten().clone()),
    "fill_ of a row by a tensor": lambda x: x[2].fill_(x[0, 0].clone()),
    "pow_": lambda x: x.pow_(3),
    "a power": lambda x: x.__ipow__(2),
    "square_": lambda x: x.square_(),
    "a root of squares": lambda x: x.square_().pow_(0.5),
    "eq_": lambda x: x.eq_(x[0].clone()),
    "gt_": lambda x: x.gt_(0.25),
    "logical_not_": lambda x: x.logical_not_(),
    "sign_": lambda x: x.sign_(),
}


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("size", [2.0**-30, 1.0, 2.0**20])
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_what_is_assigned_in_place_is_what_torch_assigns(name, size):
    plain = (random(4, 6) * size).half().float() if size == 1 else random(4, 6).half().float() * size
    x = autoscale.as_scaled(plain.clone())
    ASSIGNMENTS[name](x)
    ASSIGNMENTS[name](plain)
    assert near(x, plain) and without_rule(x) == []


def test_the_gradient_of_an_indexed_tensor_is_right():
    plain = random(5, 4).requires_grad_()
    x: Any = autoscale.as_scaled(plain.detach()).requires_grad_()
    rows, weight = torch.tensor([0, 2, 2, 4]), random(4, 4, seed=1)
    (plain[rows] * weight).sum().backward()
    (x[rows] * weight).sum().backward()
    assert near(x.grad, plain.grad) and without_rule(x) == []


class Words(nn.Module):
    def __init__(self, bag: bool) -> None:
        super().__init__()
        table = nn.EmbeddingBag(30, 8, mode="sum", sparse=True) if bag else nn.Embedding(30, 8, sparse=True, padding_idx=3)
        self.table, self.head, self.bag = table, nn.Linear(8, 5), bag

    def forward(self, words):
        rows = self.table(words) if self.bag else self.table(words).mean(1)
        return self.head(rows)


SPARSE_STEPS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.5),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.02),
}


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("name", SPARSE_STEPS)
def test_a_sparse_embedding_trains_as_on_plain_tensors(name, bag):
    torch.manual_seed(3)
    runs = three_runs(Words(bag))
    steps = [[SPARSE_STEPS[name](each.table.parameters()), torch.optim.SGD(each.head.parameters(), lr=0.1)] for each, _ in runs]
    generator = torch.Generator().manual_seed(4)
    losses = []
    for _ in range(20):
        words, target = torch.randint(30, (16, 4), generator=generator), torch.randint(5, (16,), generator=generator)
        losses_of_step = []
        for (each, scope), optimizers in zip(runs, steps, strict=True):
            loss = 0.0
            for half in (slice(0, 8), slice(8, 16)):  # the second gradient is added to the first
                with scope():
                    part = F.cross_entropy(each(words[half]), target[half]) / 2
                    part.backward()
                loss += part.item()
            assert each.table.weight.grad.is_sparse
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses_of_step.append(loss)
        losses.append(losses_of_step)
    assert rounds_alike(*torch.tensor(losses).T), losses
    ours, rounded, expected = (autoscale.value(each.table.weight.detach()) for each, _ in runs)
    # The rounded run's own weights stay in FP32; data are rounded once more.
    assert (ours - expected).norm() <= 4 * (rounded - expected).norm() + gamma(1, torch.float16) * expected.norm()


def test_a_step_of_a_sparse_gradient_is_not_lost_to_rounding():
    table: Any = autoscale.autoscale(nn.Embedding(4, 3, sparse=True))
    start = autoscale.value(table.weight.detach()).clone()
    optimizer = torch.optim.SGD(table.parameters(), lr=2.0**-16)  # of weights near 1
    for _ in range(256):
        optimizer.zero_grad()
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
    moved = autoscale.value(table.weight.detach()) - start
    # Data are rounded once before and once after; data and remainder, whose 22 bits all steps are added to, at each step.
    bound = (gamma(2, torch.float16) + 256 * 2.0**-22) * start[1].abs().max() + gamma(1, torch.float16) * 2.0**-8
    assert within(moved[1], torch.full((3,), -(2.0**-8)), bound) and not moved[0].any()


def test_products_with_sparse_matrices_are_those_of_plain_tensors():
    adjacency, other = torch.eye(5).roll(1, 0).to_sparse(), (random(5, 4, seed=1) > 0).float().to_sparse()
    plain = random(5, 4).requires_grad_()
    x: Any = autoscale.as_scaled(plain.detach()).requires_grad_()
    (torch.sparse.mm(adjacency, plain) * plain).sum().backward()
    (torch.sparse.mm(adjacency, x) * x).sum().backward()
    assert near(x.grad, plain.grad)
    assert near(x + other, (plain + other).detach()) and near(
        (x.detach() * other).to_dense(), (plain.detach() * other).to_dense()
    )
    assert near(x.detach().to_sparse().to_dense(), plain.detach())


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"foreach": False, "weight_decay": 0.01}, {"lr": 1e-3, "maximize": True}]
)
def test_adafactor_makes_the_steps_of_fp32(options):
    torch.manual_seed(5)
    runs = three_runs(nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 4)))
    optimizers = [torch.optim.Adafactor(each.parameters(), **{"lr": 1e-2, **options}) for each, _ in runs]
    for step in range(25):
        x, y = random(32, 12, seed=step), random(32, 4, seed=100 + step)
        for (each, scope), optimizer in zip(runs, optimizers, strict=True):
            optimizer.zero_grad()
            with scope():
                F.mse_loss(each(x), y).backward()
            optimizer.step()
    for ours, rounded, expected in zip(*(each.parameters() for each, _ in runs), strict=True):
        # The rounded run's own weights stay in FP32; data are rounded once more.
        error = (autoscale.value(ours) - expected).norm()
        assert error <= 4 * (rounded - expected).norm() + gamma(1, torch.float16) * expected.norm()
    assert without_rule(runs[0][0]) == []


@pytest.mark.parametrize(
    "name", ["Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Muon", "Adam", "LBFGS"]
)
def test_every_optimizer_of_torch_steps_as_in_fp32(name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    torch.manual_seed(6)
    runs = three_runs(nn.Sequential(nn.Linear(12, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False)))
    optimizers = [getattr(torch.optim, name)(each.parameters(), lr=1e-3) for each, _ in runs]
    losses = []
    for step in range(3 if name == "LBFGS" else 10):  # which makes 20 steps in one
        x, y = random(32, 12, seed=step % 2), random(32, 4, seed=100 + step % 2)
        losses_of_step = []
        for (each, scope), optimizer in zip(runs, optimizers, strict=True):

            def closure(each=each, scope=scope, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                with scope():
                    loss = F.mse_loss(each(x), y)
                    loss.backward()
                return loss

            losses_of_step.append(float(optimizer.step(closure)))
        losses.append(losses_of_step)
    assert rounds_alike(*torch.tensor(losses).T), losses


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_angles_of_a_transformer_layer_stay_exact(interleaved):
    te: Any = pytest.importorskip("plimsoll.pytorch")
    torch.manual_seed(0)
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0, attention_dropout=0, rotary_pos_interleaved=interleaved)
    angles = te.RotaryPositionEmbedding(8, interleaved=interleaved)(4000)[-6:]  # of hundreds of turns
    x = random(6, 2, 32)
    model: Any = autoscale.autoscale(copy.deepcopy(layer))
    expected, result = layer(x, rotary_pos_emb=angles), model(x, rotary_pos_emb=angles)
    assert near(result, expected, 8)
    # Angles that a caller has scaled turn by what they are.
    turned = te.apply_rotary_pos_emb(autoscale.as_scaled(random(6, 2, 4, 8)), autoscale.as_scaled(angles % 6.0))
    assert near(turned, te.apply_rotary_pos_emb(random(6, 2, 4, 8), autoscale.value(autoscale.as_scaled(angles % 6.0))))
