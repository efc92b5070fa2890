"""Every command that reads a file, run as a user runs it, with one of its files damaged, cut off, empty, missing, of another kind or
sparse. Failures: an end by a signal, no end within the limit, an exit code beyond 0 to 3, a stack trace, more than a few lines on stderr,
and a command of `plimsoll --help` that this file does not know. Trees that made one fail are kept in out/attack."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import PROGRAM, ROOT, Attack, complaint, library_environment, run_program
from damage import damage_bytes, damage_json
from small_models import letters, t5_tensors, write_adapter, write_chats, write_llama

MINUTES = 17.5
COUNT = 5_000
WORKERS = 2
LIMIT = 60.0  # seconds of one run; each takes less than one on an idle machine
MEMORY = 16 << 30  # bytes of addresses that a run may have: more than it needs, less than would harm the machine
PYTHON_EVERY = 60  # one case in so many runs Python's own commands, which take seconds to start

SMALL = (
    "--model tiny --steps 2 --layers 1 --dim 16 --heads 2 --context 16 --batch 1 --eval-windows 1 --warmup 1 --threads 1".split()
)
RESUME = ["train", "--data", "{text}", "--out", "{run}", "--resume", *SMALL]
T5_LENGTH = ["--max-new-tokens", "2", "--threads", "1"]
NO_FILES = {"info", "shard-plan"}  # commands without an input file
NO_HOST = "--host 256.0.0.1 --max-context 64 --threads 1".split()  # ends a server that has loaded its model
TEXT_MODEL = "--recipe fp32 --steps 1 --context 8 --batch 1 --eval-windows 1 --warmup 1 --threads 1".split()
FINETUNE = ["finetune", "--model", "{llama}", "--data", "{chats}", "--recipe", "fp32", "--context", "16", "--batch", "1",
            "--eval-share", "0.3", "--warmup-share", "0", "--samples", "1", "--save-every", "1", "--threads", "1"]  # fmt: skip
LINE = "--context 8 --tokens 64 --measurements 3 --max-kl 6e-9 --threads 1".split()  # FP8 costs more, so that a plan is searched
LINE_T5 = "--tokens 64 --measurements 3 --max-kl 6e-8 --threads 1".split()
# command: its cases, each the words and the files of the tree that it reads.
CASES = {
    "train": [
        (["train", "--data", "{texts}", "--out", "{out}", "--config", "{config}", *SMALL], ["config", "texts/a.txt"]),
        (RESUME, ["run/step-*/*", "run/train.jsonl"]),
        (["train", "--model", "{llama}", "--data", "{text}", "--out", "{out}", *TEXT_MODEL], ["llama/*", "text"]),
        (
            ["train", "--data", "{text}", "--out", "{out}", *SMALL, "--recipe", "nvfp4", "--high-precision-tail", "0.5"],
            ["text"],
        ),
        (["train", "--data", "{text}", "--out", "{out}", *SMALL, "--recipe", "ms-eden"], ["text"]),
    ],
    "compare": [
        (["compare", "{llama}", "{other}"], ["llama/*.json", "llama/model.safetensors"]),
        (
            ["compare", "--recipes", "fp32", "--data", "{text}", "--out", "{out}", "--config", "{config}", *SMALL],
            ["config", "text"],
        ),
        (["compare", "--recipes", "fp32", "--data", "{text}", "--out", "{out}", *SMALL, "--audit", "{out}.audit"], ["text"]),
    ],
    "generate": [
        (["generate", "--checkpoint", "{run}", "--prompt", "ab", "--tokens", "2"], ["run/step-*/*"]),
        (["generate", "--model", "{llama}", "--prompt", "ab", "--tokens", "2", "--dtype", "fp8"], ["llama/*"]),
        (["generate", "--model", "{llama}", "--prompt", "ab", "--tokens", "2", "--dtype", "nvfp4"], ["llama/*"]),
        (["generate", "--model", "{codes}", "--prompt", "ab", "--tokens", "2"], ["codes/*"]),
        (["generate", "--model", "{halves}", "--prompt", "ab", "--tokens", "2"], ["halves/*"]),
        (["generate", "--model", "{llama}", "--chat", "--prompt", "ab", "--tokens", "2", "--kv", "fp8"], ["llama/*"]),
    ],
    "serve": [
        (["serve", "--model", "{t5}", *NO_HOST], ["t5/*"]),
        (["serve", "--model", "{sharded}", "--dtype", "fp8", *NO_HOST], ["sharded/*"]),
        (["serve", "--model", "{llama}", "--kv", "fp8", *NO_HOST], ["llama/*"]),
    ],
    "finetune": [
        ([*FINETUNE, "--out", "{out}", "--steps", "1"], ["llama/*", "chats.jsonl"]),
        ([*FINETUNE, "--out", "{tuned}", "--steps", "2", "--resume"], ["tuned/step-*/*", "tuned/train.jsonl", "llama/*"]),
    ],
    "merge": [
        (["merge", "--model", "{llama}", "--adapter", "{adapter}", "--out", "{out}"], ["llama/*", "adapter/*", "adapter/*"])
    ],
    "convert": [
        (["convert", "--model", "{llama}", "--out", "{out}", "--dtype", "bf16"], ["llama/*"]),
        (["convert", "--model", "{codes}", "--out", "{out}", "--dtype", "fp16"], ["codes/config.json", "codes/*.safetensors"]),
    ],
    "quantize": [
        (["quantize", "--model", "{llama}", "--out", "{out}", "--format", "nvfp4"], ["llama/config.json", "llama/*.safetensors"]),
        (["quantize", "--model", "{llama}", "--out", "{out}", "--format", "fp8-block"], ["llama/*.safetensors"]),
        (["quantize", "--model", "{llama}", "--out", "{out}", "--format", "nvfp4", "--rotate"], ["llama/*.safetensors"]),
        (
            ["quantize", "--model", "{llama}", "--out", "{out}", "--format", "nvfp4", "--calibrate", "{texts}/a.txt"],
            ["llama/*", "texts/a.txt"],
        ),
        (
            [
                "quantize",
                "--model",
                "{llama}",
                "--out",
                "{out}",
                "--format",
                "fp8-block",
                "--rotate",
                "--calibrate",
                "{texts}/a.txt",
            ],
            ["llama/*", "texts/a.txt"],
        ),
    ],
    "inspect": [
        (["inspect", "{t5}/model.safetensors"], ["t5/model.safetensors"]),
        (["inspect", "{run}"], ["run/step-*/*"]),
        (["inspect", "{t5}"], ["t5/*"]),
        (["inspect", "{llama}"], ["llama/*"]),
        (["inspect", "{halves}"], ["halves/*.safetensors"]),
    ],
    "consolidate": [(["consolidate", "{run}", "--out", "{out}"], ["run/step-*/*"])],
    "t5": [
        (["t5", "generate", "--model", "{t5}", "--input", "{text}", *T5_LENGTH], ["t5/*", "text"]),
        (["t5", "generate", "--model", "{sharded}", "--input", "The fox", *T5_LENGTH], ["sharded/*"]),
        (["t5", "generate", "--model", "{sharded}", "--input", "The fox", *T5_LENGTH, "--dtype", "fp8"], ["sharded/config.json"]),
        (["t5", "score", "--model", "{t5}", "--input", "{examples}", "--target", "{targets}"], ["t5/*", "examples", "targets"]),
        (["t5", "encode", "--model", "{t5}", "--input", "{examples}", "--out", "{out}", "--dtype", "fp8"], ["t5/*", "examples"]),
    ],
    "gauge": [
        (["gauge", "--model", "{t5}", "--calibrate", "{examples}", "--out", "{out}"], ["t5/*", "examples"]),
        (["gauge", "--model", "{t5}", "--out", "{out}", "--audit", "{out}.audit"], ["t5/*"]),
        (["gauge", "--model", "{run}", "--calibrate", "{text}", "--out", "{out}"], ["run/step-*/*", "text"]),
        (["gauge", "--model", "{llama}", "--calibrate", "{text}", "--out", "{out}"], ["llama/*", "text"]),
        (["gauge", "--model", "{llama}", "--calibrate", "{chats}", "--out", "{out}", "--measurements", "2"], ["chats.jsonl"]),
        (["gauge", "--model", "{tuned}", "--out", "{out}"], ["tuned/step-*/*"]),
    ],
    "parity": [
        (
            ["parity", "--model", "{t5}", "--data", "{examples}", "--dtypes", "fp16", "--max-new-tokens", "2"],
            ["t5/*", "examples"],
        ),
        (
            ["parity", "--model", "{llama}", "--data", "{text}", "--dtypes", "bf16,fp8,mxfp4", "--tokens", "20"],
            ["llama/*", "text"],
        ),
        (
            ["parity", "--model", "{llama}", "--data", "{text}", "--tokens", "20", "--inject", "0,0,4", "--max-ppl", "1e9"],
            ["llama/*", "text"],
        ),
        (
            ["parity", "--model", "{halves}", "--against", "{llama}", "--data", "{text}", "--tokens", "20"],
            ["halves/*", "llama/*", "text"],
        ),
    ],
    "audit": [
        (["audit", "--model", "{run}", "--tokens", "4"], ["run/step-*/*"]),
        (["audit", "--model", "{llama}", "--as", "generate", "--dtype", "fp8", "--tokens", "4"], ["llama/*"]),
        (["audit", "--diff", "{lines}/audit.jsonl", "{lines}/audit.jsonl"], ["lines/audit.jsonl"]),
        (["audit", "--diff", "{lines}/audit.jsonl", "{lines}/audit.jsonl", "--forward-products"], ["lines/audit.jsonl"]),
        (["audit", "--diff", "{lines}/runs.jsonl", "{lines}/runs.jsonl"], ["lines/runs.jsonl"]),
    ],
    "line": [
        (["line", "--model", "{llama}", "--data", "{text}", "--out", "{out}", *LINE], ["llama/*", "text"]),
        (["line", "--model", "{llama}", "--data", "{text}", "--out", "{out}", *LINE, "--audit", "{out}.audit"], ["llama/*"]),
        (["line", "--model", "{t5}", "--data", "{examples}", "--out", "{out}", *LINE_T5], ["t5/*", "examples"]),
        (
            ["line", "--model", "{sharded}", "--data", "{text}", "--out", "{out}", *LINE_T5, "--codes", "nvfp4"],
            ["sharded/*", "text"],
        ),
    ],
    "logprobs": [
        (["logprobs", "--model", "{llama}", "--data", "{text}", "--tokens", "20", "--as", "decode"], ["llama/*", "text"]),
        (["logprobs", "--diff", "{lines}/logprobs.jsonl", "{lines}/logprobs.jsonl"], ["lines/logprobs.jsonl"]),
    ],
    "mmlu": [
        (
            ["mmlu", "--model", "{letters}", "--data", "{questions}", "--dtypes", "fp32"],
            ["letters/*", "questions/test/*", "questions/dev/*"],
        ),
        (["mmlu", "--model", "{letters}", "--data", "{questions}", "--audit", "{out}.audit"], ["letters/*"]),
    ],
}
PYTHON_CASES = [
    (["report", "{run}", "--out", "{out}"], ["run/train.jsonl"]),
    (["report", "{results}/parity.json", "--out", "{out}"], ["results/parity.json"]),
    (["report", "{results}/plimsoll_gauge.json", "--out", "{out}"], ["results/plimsoll_gauge.json"]),
]


def commands_of_help():
    """Commands that `plimsoll --help` lists."""
    said = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  ([a-z][a-z0-9-]*) ", said.partition("Subcommands:")[2], re.MULTILINE))


def make_tree(folder):
    """Valid files for every case; {name} in a case's words is folder/name."""
    from safetensors.torch import save_file

    config, tensors = t5_tensors()
    _, _, tokenizer = (ROOT / "tests" / "fuzz" / "corpus" / "tokenizer" / "charsmap").read_bytes().partition(b"\0")
    for name, model in {"t5": tokenizer, "sharded": tokenizer, "letters": letters()}.items():
        (folder / name).mkdir()
        plan = {"plimsoll_plan": {"high_precision": ["lm_head"]}} if name == "sharded" else {}
        (folder / name / "config.json").write_text(json.dumps({**config, **plan}))
        (folder / name / "spiece.model").write_bytes(model)
    (folder / "t5" / "tokenizer_config.json").write_text('{"extra_ids": 100}')
    for name in ("t5", "letters"):
        save_file(tensors, folder / name / "model.safetensors")
    names = sorted(tensors)
    weight_map = {name: "a.safetensors" if number % 2 else "b.safetensors" for number, name in enumerate(names)}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / "sharded" / file)
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("llama", "other"):
        write_llama(folder / name)
    write_adapter(folder / "adapter")
    write_chats(folder / "chats.jsonl")
    (folder / "text").write_text("The fox\nABC the fox\n" * 8)
    (folder / "targets").write_text("fox\nthe\n")
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("The fox jumps over the fence. " * 40)
    (folder / "config").write_text(json.dumps({"lr": 0.01, "seed": 3, "log-every": 1, "save-every": 1, "weight-decay": 0.1}))
    lines = [{"text": "The fox", "target": "fox"}, {"input_ids": [4, 5, 1], "target": [4, 1], "decoder_input_ids": [0, 4]}]
    (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for part in ("test", "dev"):
        (folder / "questions" / part).mkdir(parents=True)
        (folder / "questions" / part / f"fox_{part}.csv").write_text('"The fox, the?",a,b,c,"d ""e""",A\nABC,1,2,3,4,D\n')
    row = {"layer": "a", "op": "gemm output", "operands": [{"name": "input", "format": "e4m3", "granularity": "row"}], "output": "bf16",
           "kernel": "fp32 avx2", "decided": "recipe", "reason": "", "calls": 1, "operations": 8.0, "share": 1.0}  # fmt: skip
    (folder / "lines").mkdir()
    (folder / "lines" / "audit.jsonl").write_text(2 * (json.dumps(row) + "\n"))
    (folder / "lines" / "runs.jsonl").write_text("".join(json.dumps({"run": run, **row}) + "\n" for run in ("fp32", "fp8")))
    (folder / "lines" / "logprobs.jsonl").write_text(2 * '{"token": 1, "id": 7, "log_probability": -0.5}\n')
    (folder / "results").mkdir()
    (folder / "results" / "parity.json").write_text(
        json.dumps({"dtypes": {"fp32": {"headroom_fp16": {"x": 3.0}}, "fp16": {"logits_kl": 0.1}}})
    )
    certificate = {"values": [{"name": "x", "headroom_bits_before": 1.0, "headroom_bits": 2.0}], "exponents": {"residual": 0},
                   "fp32": {"bit_identical": True}, "fp16": {"logits_relative_l2": 0.1}}  # fmt: skip
    (folder / "results" / "plimsoll_gauge.json").write_text(json.dumps(certificate))
    subprocess.run([PROGRAM, "train", "--data", folder / "text", "--out", folder / "run", "--recipe", "fp8", *SMALL, "--steps", "1"], check=True,
                   capture_output=True)  # fmt: skip
    for name, codes in {"codes": "fp8-block", "halves": "nvfp4"}.items():
        quantize = ["quantize", "--model", folder / "llama", "--out", folder / name, "--format", codes]
        subprocess.run([PROGRAM, *quantize], check=True, capture_output=True)
    tune = [word.format(llama=folder / "llama", chats=folder / "chats.jsonl") for word in FINETUNE]
    subprocess.run([PROGRAM, *tune, "--out", folder / "tuned", "--steps", "1"], check=True, capture_output=True)


def damage_file(generator, path):
    """Changes the file; returns how."""
    good = path.read_bytes()
    kinds = ["bytes"] * 3 + ["json"] * 4 + ["cut", "empty", "missing", "pipe", "directory", "sparse", "link"]
    kind = generator.choice(kinds)
    if kind == "json":
        try:
            lines = [json.loads(line) for line in good.decode().splitlines()] if path.suffix == ".jsonl" else [json.loads(good)]
        except ValueError:
            kind = "header" if path.suffix == ".safetensors" else "bytes"
        else:
            number = generator.randrange(len(lines))
            lines[number] = damage_json(generator, lines[number])
            path.write_text("\n".join(json.dumps(line) for line in lines) + "\n", errors="replace")
    if kind == "header":
        size = int.from_bytes(good[:8], "little")
        header = json.dumps(damage_json(generator, json.loads(good[8 : 8 + size]))).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + good[8 + size :])
    if kind == "bytes":
        path.write_bytes(damage_bytes(generator, good))
    elif kind == "cut":
        path.write_bytes(good[: generator.randrange(len(good) + 1)])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind in ("missing", "pipe", "directory", "link"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(generator.choice((path.name, "/dev/zero", "/dev/null", "/proc/self/mem", "absent")))
    elif kind == "sparse":
        os.truncate(path, generator.choice((2**31, 2**40)))
    return kind


def case(base, seed, number, memory):
    """One run. Returns what is wrong with how it ended, or None."""
    generator = random.Random(f"{seed}-{number}")
    by_python = number % PYTHON_EVERY == 0
    cases = PYTHON_CASES if by_python else CASES[generator.choice(sorted(CASES))]
    words, patterns = generator.choice(cases)
    with tempfile.TemporaryDirectory(prefix="plimsoll-attack-", dir=memory) as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(base, tree)
        victim = generator.choice(
            sorted(path for path in tree.glob(generator.choice(patterns.copy()).replace("examples", "examples.jsonl")))
        )
        kind = damage_file(generator, victim)
        places = {path.stem if path.suffix == ".jsonl" else path.name: path for path in base.iterdir()}
        places = {name: tree / path.name for name, path in places.items()} | {"out": tree / "out"}
        program = [sys.executable, "-m", "plimsoll"] if by_python else ["prlimit", f"--as={MEMORY}", PROGRAM]
        command = [*program, *(word.format(**places) for word in words)]
        environment = {**library_environment(), "OMP_NUM_THREADS": "1"}
        wrong = complaint(run_program(command, LIMIT, env=environment, cwd=folder))
        if wrong is None:
            return None
        kept = ROOT / "out" / "attack" / f"commands-{seed}-{number}"
        if kind != "pipe":
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(tree, kept, symlinks=True, ignore=lambda *_: ["out"] if kind != "sparse" else ["out", victim.name])
        return f"case {seed}-{number}, {victim.relative_to(tree)} {kind}: {wrong}"


def main():
    attack = Attack("runs of commands with a damaged file")
    unknown = commands_of_help() - set(CASES) - NO_FILES
    for name in sorted(unknown):
        attack.fail(f"{name}: a command of plimsoll --help that tests/attack/commands.py has no case for")
    shared = Path("/dev/shm")
    memory = shared if shared.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="plimsoll-attack-", dir=memory) as folder, ThreadPoolExecutor(WORKERS) as workers:
        base = Path(folder)
        make_tree(base)
        number = 0
        while attack.goes_on(COUNT):
            numbers = range(number, min(number + 50, COUNT))
            for wrong in workers.map(
                lambda one: case(base, attack.seed, one, memory) if attack.seconds_left() else "late", numbers
            ):
                if wrong == "late":
                    continue
                attack.count += 1
                if wrong:
                    attack.fail(wrong)
            number = numbers.stop
    return attack.finish()


if __name__ == "__main__":
    sys.exit(main())
