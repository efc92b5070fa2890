"""Times a T5 of flan-t5-base's shape, random weights: encoding and decoding by Plimsoll, Hugging Face and CTranslate2, in turn.

    .venv/bin/python bench/t5.py [--rounds 5] [--contestants hf-bf16,ctranslate2-fp32,fp8,...] [--works encode-128,greedy-1,...] [--json FILE]

Peers run with PyTorch's tuned allocator settings. Prints medians in ms, of one encoding or one step (the difference between two lengths, so
without the encoder), each over the fastest peer named for that work, and, for greedy decoding of one text, the share of a plain pass
over the bytes of the weights (build/bin/read_worker, timed in turn). Then, from a process each: from loading the checkpoint, which lies in
the page cache, to the first token, and the most memory that `plimsoll t5 generate` held. CTranslate2 is a contestant where it is installed:
.venv/bin/pip install --no-deps ctranslate2==4.8.5
"""

import json

import t5_checkpoint
import written
from in_turn import READS, Checkpoints, Comparison, Packages, Work
from t5_worker import SOURCE_TOKENS, ids

STEPS = 32  # of decoding
HUGGING_FACE = ("hf-fp32", "hf-bf16", "hf-fp16")
CTRANSLATE2 = "ctranslate2-fp32"


def write_checkpoints(directory, args):
    count = directory / "parameters.json"
    if not count.exists():
        count.write_text(json.dumps(t5_checkpoint.write_hugging_face(directory / "hf")))
    if CTRANSLATE2 in args.contestants:
        written.once(directory / "ctranslate2", lambda partial: t5_checkpoint.write_ctranslate2(directory / "hf", partial))
    texts = directory / "ids.jsonl"
    t5_checkpoint.write_inputs(texts, ids(1, SOURCE_TOKENS))
    return Checkpoints(
        directories={"plimsoll": directory / "hf", "hf": directory / "hf", "ctranslate2": directory / "ctranslate2"},
        parameters=json.loads(count.read_text()),
        weights_of_a_step=t5_checkpoint.WEIGHTS_OF_A_STEP,
        first_token=["t5", "generate", "--model", directory / "hf", "--input", texts, "--max-new-tokens", 1],
    )


def decoding(rows, beams, peers):
    return Work({"work": "decode", "rows": rows, "beams": beams, "steps": STEPS}, peers, CTRANSLATE2)


COMPARISON = Comparison(
    worker="t5_worker.py",
    ours={"fp32": "read-fp32", "bf16": "read-bf16", "fp16": None, "fp8": "read-fp8"},  # fp16 is multiplied from fp32
    peers=(*HUGGING_FACE, CTRANSLATE2),
    works={
        "encode-128": Work({"work": "encode", "tokens": 128}, HUGGING_FACE, None),
        "encode-512": Work({"work": "encode", "tokens": 512}, HUGGING_FACE, None),
        "greedy-1": decoding(1, 1, ("hf-bf16", CTRANSLATE2, *READS)),
        "greedy-8": decoding(8, 1, ("hf-bf16", CTRANSLATE2)),
        "beam-4": decoding(1, 4, (CTRANSLATE2,)),
    },
    packages={CTRANSLATE2: Packages(("ctranslate2",), "--no-deps ctranslate2==4.8.5")},
    write_checkpoints=write_checkpoints,
)


if __name__ == "__main__":
    COMPARISON.run(COMPARISON.parse(COMPARISON.parser(__doc__.partition("\n\n")[0])))
