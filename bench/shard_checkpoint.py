"""Times saving and loading a checkpoint beside what they cannot beat and beside torch.distributed.checkpoint (DCP), in turn:

    .venv/bin/python bench/shard_checkpoint.py --millions 124 --rounds 3

The tensors are those of a model in fp32 with AdamW's moments. `write` and `read` are plain files of the same bytes: written and
flushed to the disk, read from the system's cache; `copy` is one copy in memory whose pages are there. Medians.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import plimsoll  # noqa: F401  registers the operators
import torch
import torch.distributed.checkpoint as dcp
from plimsoll.shard import CheckpointSaver, open_checkpoint

CHUNK = 64 << 20


def tensors(millions: int) -> dict[str, dict[str, torch.Tensor]]:
    """As in GPT-2: a third of the parameters in one matrix, the others in twelve layers."""
    rows = millions * 1_000_000 // 1024
    sizes = {"embedding": rows * 31 // 100} | {f"layer{i}.weight": rows * 69 // 1200 for i in range(12)}
    model = {name: torch.randn(size, 1024) for name, size in sizes.items()}
    moments = {
        f"{name}.{moment}": torch.randn_like(value) for name, value in model.items() for moment in ("exp_avg", "exp_avg_sq")
    }
    return {"model": model, "optimizer": moments}


def bytes_of(sections) -> list[memoryview]:
    return [memoryview(value.view(-1).numpy()).cast("B") for section in sections.values() for value in section.values()]


def write_plainly(path: Path, parts: list[memoryview]) -> None:
    """Beside what is there, which it then replaces, as a checkpoint does: blocks that a disk has had before may be faster."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb", buffering=0) as file:
        for part in parts:
            for begin in range(0, len(part), CHUNK):
                file.write(part[begin : begin + CHUNK])
        os.fsync(file.fileno())
    partial.replace(path)


def read_plainly(path: Path, parts: list[memoryview]) -> None:
    with open(path, "rb", buffering=0) as file:
        for part in parts:
            done = 0
            while done < len(part):
                done += file.readinto(part[done : done + CHUNK])


def load_ours(directory: Path, sections) -> None:
    checkpoint = open_checkpoint(directory)
    for section, values in sections.items():
        for name, value in values.items():
            value.copy_(checkpoint.read(section, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=124)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    sections = tensors(options.millions)
    target = {section: {name: torch.zeros_like(value) for name, value in values.items()} for section, values in sections.items()}
    flat = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    flat_target = {f"{section}.{name}": value for section, values in target.items() for name, value in values.items()}
    gigabytes = sum(value.nbytes for value in flat.values()) / 1e9
    folder = Path(tempfile.mkdtemp(dir=options.directory))
    later = CheckpointSaver(folder / "later", keep=1, asynchronous=True)
    cases = {
        "copy": lambda: [flat_target[name].copy_(value) for name, value in flat.items()],
        "write": lambda: write_plainly(folder / "plain", bytes_of(sections)),
        "save": lambda: CheckpointSaver(folder / "ours", keep=1).save(1, sections),
        "save, DCP": lambda: dcp.save(flat, checkpoint_id=str(folder / "theirs"), no_dist=True),
        "save asynchronously: the stall": lambda: later.save(1, sections),
        "read": lambda: read_plainly(folder / "plain", bytes_of(target)),
        "load": lambda: load_ours(folder / "ours" / "step-00000001", target),
        "load, DCP": lambda: dcp.load(flat_target, checkpoint_id=str(folder / "theirs"), no_dist=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    try:
        later.save(1, sections)  # its memory is there from now on
        for _ in range(options.rounds):
            for name, case in cases.items():
                later.wait()
                os.sync()
                start = time.perf_counter()
                case()
                seconds[name].append(time.perf_counter() - start)
        for name, value in flat.items():
            if not torch.equal(value, flat_target[name]):
                raise SystemExit(f"expected what was saved, got another {name}")
    finally:
        later.wait()
        shutil.rmtree(folder)
    print(f"{gigabytes:.2f} GB, {torch.get_num_threads()} threads, {options.rounds} rounds")
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(f"{name:32} {middle:7.2f} s {gigabytes / middle:7.2f} GB/s   from {min(found):.2f} to {max(found):.2f} s")


if __name__ == "__main__":
    main()
