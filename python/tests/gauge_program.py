"""`plimsoll gauge`, as tests run it."""

import json
import subprocess

import plimsoll
import torch
import transformers

PROGRAM = plimsoll._library.find().parent / "bin" / "plimsoll"


def gauge(folder, out, *arguments):
    """The certificate."""
    done = subprocess.run(
        [PROGRAM, "gauge", "--model", folder, "--out", out, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((out / "plimsoll_gauge.json").read_text())


def write_ids(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def hugging_face(folder, kind=transformers.T5ForConditionalGeneration):
    return kind.from_pretrained(folder, dtype=torch.float32).eval()
