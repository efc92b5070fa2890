"""A forked child of a process with a pool of threads computes, on one thread, with the bits of its parent."""

import hashlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll import amp
from plimsoll.common import recipe

DEADLINE = 300  # seconds; a child that hangs would never end


def digest(tensors):
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def work():
    """Forward and backward of operators of Plimsoll, large enough for several threads."""
    torch.manual_seed(2)
    layer = te.LayerNormMLP(256, 512)
    x = torch.randn(256, 256, requires_grad=True)
    for _ in range(2):
        with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling()):
            output = layer(x)
        output.backward(torch.linspace(-1, 1, 256).expand(256, 256))
    return digest([output, x.grad, *(parameter.grad for parameter in layer.parameters())])


def work_of_torch():
    """Products (MKL's, oneDNN's), element by element and sums, whose bits may depend on the number of threads."""
    x = torch.linspace(-1, 1, 1 << 18).view(512, 512)
    with amp.autocast("cpu", torch.bfloat16):
        narrow = x @ x
    return digest([x @ x, narrow.float(), torch.nn.functional.gelu(x), x.softmax(-1), x.sum(0)])


@pytest.fixture(autouse=True)
def pool():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    work_of_torch()
    yield work()  # which makes the threads of the pool
    torch.set_num_threads(before)


def told_by_child(function):
    """The text that function() returns in a forked child; None where it does not come in time."""
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(ends[1], function().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(ends[1])
    came = select.select([ends[0]], [], [], DEADLINE)[0]
    text = os.read(ends[0], 1 << 16).decode() if came else None
    os.close(ends[0])
    if not came:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text


def test_a_forked_child_computes_with_the_bits_of_its_parent(pool):
    assert told_by_child(lambda: repr((torch.get_num_threads(), work()))) == repr((1, pool))
    assert torch.get_num_threads() == 2 and work() == pool


def test_torchs_operators_compute_there_with_the_bits_of_one_thread():
    text = told_by_child(work_of_torch)
    torch.set_num_threads(1)
    assert text == work_of_torch()


def test_children_of_children_do_too(pool):
    assert told_by_child(lambda: told_by_child(lambda: repr(work())) or "late") == repr(pool)


def test_a_library_that_sets_the_number_of_threads_in_the_child_does_not_hang_our_operators(pool):
    layer, x = te.Linear(256, 256), torch.ones(512, 256)

    def child():
        torch.set_num_threads(2)
        with torch.no_grad(), te.fp8_autocast(fp8_recipe=recipe.Float8CurrentScaling()):
            return digest([layer(x)])

    assert told_by_child(child) == child()


def _put(queue):
    queue.put(work())


def test_processes_of_the_fork_context_compute(pool):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_put, args=(queue,)) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        assert [queue.get(timeout=DEADLINE) for _ in processes] == [pool, pool]
    finally:
        for process in processes:
            process.kill()
            process.join()


class Computed(torch.utils.data.Dataset[torch.Tensor]):
    """Items that workers compute with operators of Plimsoll."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad(), te.fp8_autocast(fp8_recipe=recipe.Float8CurrentScaling()):
            torch.manual_seed(index)
            return te.Linear(128, 256)(torch.randn(512, 128))


def test_workers_of_a_data_loader_compute(pool):
    data = Computed()
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=DEADLINE)
    for index, item in enumerate(loader):
        assert torch.equal(item, data[index])


def test_a_process_without_other_threads_forks_with_all_of_them():
    """As servers do that load once and fork workers: nothing is gone, so nothing changes."""
    code = textwrap.dedent(
        """
        import os, torch, plimsoll
        assert len(os.listdir("/proc/self/task")) == 1
        if os.fork() == 0:
            assert torch.get_num_threads() == 2
            torch.nn.functional.gelu(torch.ones(1 << 20))
            os._exit(0)
        assert os.wait()[1] == 0
        """
    )
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + f" after {time.monotonic() - began:.0f} s"
