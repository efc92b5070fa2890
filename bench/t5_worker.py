"""One contestant of t5.py: a T5 of Hugging Face, CTranslate2 or Plimsoll, run on request.

Requests of worker.py's protocol: {"work": "encode", "tokens"} or {"work": "decode", "rows", "beams", "steps"}; the seconds are those of
one encoding or of one step.
"""

import json
from pathlib import Path
from typing import Any

import worker

SOURCE_TOKENS = 32  # of what is decoded from
VOCABULARY = 32000  # ids below are pieces of text


def ids(rows, tokens):
    """Different ones for each row, the last is </s>."""
    return [[3 + (row * 7919 + place * 104729) % (VOCABULARY - 3) for place in range(tokens - 1)] + [1] for row in range(rows)]


class HuggingFace(worker.HuggingFace):
    def __init__(self, directory, dtype, threads):
        super().__init__("T5ForConditionalGeneration", directory, dtype)

    def encode(self, tokens):
        self.model.encoder(input_ids=self.torch.tensor(ids(1, tokens)))

    def generate(self, rows, beams, steps):
        written = self.model.generate(
            self.torch.tensor(ids(rows, SOURCE_TOKENS)), num_beams=beams, max_new_tokens=steps, do_sample=False
        )
        return written.shape[1] - 1


class CTranslate2:
    model: Any

    def __init__(self, directory, dtype, threads):
        import ctranslate2

        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self.pieces = json.loads((Path(directory) / "shared_vocabulary.json").read_text())
        self.load = lambda: ctranslate2.Translator(str(directory), compute_type={"fp32": "float32"}[dtype], intra_threads=threads)

    def generate(self, rows, beams, steps):
        texts = [[self.pieces[i] for i in text] for text in ids(rows, SOURCE_TOKENS)]
        results = self.model.translate_batch(texts, beam_size=beams, max_decoding_length=steps)
        return max(len(result.hypotheses[0]) for result in results)


class Plimsoll(worker.Plimsoll):
    def __init__(self, directory, dtype, threads):
        super().__init__()
        import plimsoll.t5

        self.load = lambda: plimsoll.t5.T5ForConditionalGeneration.from_pretrained(directory, dtype)

    def encode(self, tokens):
        self.model.encode(self.torch.tensor(ids(1, tokens)))

    def generate(self, rows, beams, steps):
        written = self.model.generate(self.torch.tensor(ids(rows, SOURCE_TOKENS)), num_beams=beams, max_new_tokens=steps)
        return written.shape[1] - 1


def seconds_of_work(contestant, work):
    if work["work"] == "encode":
        return worker.seconds_of(contestant.encode, work["tokens"])[0]
    rows, beams, steps = work["rows"], work["beams"], work["steps"]
    first, _ = worker.seconds_of(contestant.generate, rows, beams, 1)
    whole, written = worker.seconds_of(contestant.generate, rows, beams, 1 + steps)
    if written != 1 + steps:
        raise SystemExit(f"t5 worker: expected {1 + steps} tokens, got {written}")
    return (whole - first) / steps


if __name__ == "__main__":
    worker.serve(
        {"hf": HuggingFace, "ctranslate2": CTranslate2, "plimsoll": Plimsoll},
        lambda contestant: contestant.generate(1, 1, 1),
        lambda contestant, request: {"seconds": seconds_of_work(contestant, request)},
    )
