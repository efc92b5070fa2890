"""Valid calls of DecoderModel's operator and of the engine's, for tests to spoil."""

import tempfile
from functools import cache

import hostile_t5
import torch
from hostile_arguments import Made, whole_numbers

WORDS = 700


@cache
def directory():
    from decoder_models import make, save  # takes transformers along

    return save(make("llama"), tempfile.mkdtemp(prefix="plimsoll-hostile-decoder-"))


def new_model():
    return torch.classes.plimsoll.DecoderModel(directory(), "fp32")


@cache
def engine():
    return torch.ops.plimsoll.serve_engine(directory(), **ENGINE)


@cache
def t5_engine():
    return torch.ops.plimsoll.serve_engine(hostile_t5.directory(), **ENGINE)


ENGINE = {
    "dtype": "fp32",
    "kv": "computed",
    "max_batch": 4,
    "max_context": 20,
    "memory": 1 << 30,
    "queue": 9,
    "adapter_names": [],
    "adapter_directories": [],
}
CALLS = {
    "decoder_decode": lambda draw: [
        Made(new_model),
        whole_numbers(2, 5, below=WORDS),
        draw.choice([None, whole_numbers(2, 5, below=2)]),
        *(3, draw.random() < 0.5, 1.0, 50, 1.0, 0.0, 7, 1.0, 0, [2], 0),
    ],
    "serve_engine": lambda draw: [draw.choice([directory(), hostile_t5.directory()]), *ENGINE.values()],
    "serve_submit": lambda draw: [
        Made(draw.choice([engine, t5_engine])),
        [1, 2, 3],
        *(3, draw.choice([None, 0.5]), 50, 1.0, 0.0, 1.0, 0.0, 0.0, [2], 7, 2, "", ""),
    ],
}
