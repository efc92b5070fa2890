"""Valid calls of T5Model's operators and methods, for tests to spoil."""

import tempfile
from functools import cache

import torch
from hostile_arguments import Made, T, whole_numbers

ops, classes = torch.ops.plimsoll, torch.classes.plimsoll
WORDS, WIDTH = 130, 32
BATCH = (whole_numbers(2, 5, below=WORDS), whole_numbers(2, 5, below=2))  # ids and mask


@cache
def directory():
    from t5_models import make, save  # takes transformers along

    folder = tempfile.mkdtemp(prefix="plimsoll-hostile-t5-")
    save(make("v1.1", vocab_size=WORDS, d_model=WIDTH), folder)
    return folder


def new_model():
    return classes.T5Model(directory(), "fp32", False)


GENERATION = [3, 0, False, 1.0, 50, 1.0, 7, 1, 1.0, "heuristic", 1, 1.0, 0, [[5, 6]], False]


def new_generation(beams=1):
    names = [each.name for each in ops.t5_generation.default._schema.arguments]
    return ops.t5_generation(**{**dict(zip(names, GENERATION, strict=True)), "num_beams": beams})


def new_steps():
    return new_model().decode(torch.randint(WORDS, (2, 5)), None, new_generation())


def new_past():
    return new_model().start(torch.randn(1, 5, WIDTH), None)


CALLS = {
    "t5_forward": lambda draw: [
        Made(new_model),
        *BATCH,
        whole_numbers(2, 3, below=WORDS),
        draw.choice([None, whole_numbers(2, 3, below=2)]),
        draw.choice([None, T(2, 5, WIDTH)]),
        None,
        None,
        draw.choice([None, whole_numbers(2, 3, below=WORDS)]),
        draw.random() < 0.5,
        None,
    ],
    "t5_generation": lambda draw: list(GENERATION),
    "t5_run_encoder": lambda draw: [Made(new_model), *BATCH, None, draw.random() < 0.5],
    "t5_set_fixes": lambda draw: [Made(new_model), 8.0, True, 0.75, 39.0, True, False],
}
METHODS = {
    "T5Model": (
        new_model,
        {
            "beam_search": [*BATCH, Made(lambda: new_generation(beams=3))],
            "clear_fixes": [],
            "clone": [],
            "decode": [*BATCH, Made(new_generation)],
            "parameters": [],
            "start": [T(1, 5, WIDTH), whole_numbers(1, 5, below=2)],
            "train": [True],
            "warning": [],
        },
    ),
    "T5Past": (new_past, {"get_seq_length": []}),
    "T5Steps": (new_steps, {"done": [], "scores": [], "sequences": [], "step": []}),
}
