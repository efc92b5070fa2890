"""Helpers of the attacks on runs: a small model that trains in a second, and its checkpoints."""

from pathlib import Path

from common import PROGRAM, ROOT, run_program

TEXT = ROOT / "LICENSE"
LIMIT = 300  # seconds for a program that nothing happens to

SHAPE = "--layers 1 --dim 32 --heads 2 --context 16 --batch 6 --warmup 2 --eval-every 0 --eval-windows 6 --threads 1".split()


def train(out, *more):
    """The command that trains the small model."""
    return [PROGRAM, "train", "--data", TEXT, "--out", out, *SHAPE, *more]


def expect_success(command):
    outcome = run_program(command, LIMIT)
    if outcome.exit_code != 0:
        raise RuntimeError(f"{' '.join(outcome.command)}: exit code {outcome.exit_code}\n{outcome.error}")
    return outcome


def files_of(checkpoint):
    """{name: bytes} of the tensors of one step's directory."""
    return {path.name: path.read_bytes() for path in sorted(Path(checkpoint).glob("*.safetensors"))}


def leftovers(folder):
    """Names that a process which ended well, or the one after it, should have removed."""
    endings = (".partial", ".replaced", ".removed", ".lock")
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.name.endswith(endings))
