"""Times SmolLM2-135M reading a prompt and writing one stream of tokens by Plimsoll, Hugging Face and llama.cpp, in turn.

    .venv/bin/python bench/generate.py [--rounds 5] [--contestants hf-bf16,llama.cpp-q8_0,fp8,...] [--works prompt-512,...] [--json FILE]

The weights are those that tools/import_gguf has put into $PLIMSOLL_CACHE or ~/.cache/plimsoll, else random ones of the same shape;
--model names another directory, of a Llama where llama.cpp is a contestant. Prints medians in ms, of reading 512 tokens up to the one
that follows, or of a token of the 128 after that; the rest is as t5.py prints it, for `plimsoll generate`. llama.cpp is a
contestant where it is installed, with GGUF files of the same weights: .venv/bin/pip install llama-cpp-python==0.3.36 gguf==0.19.0
"""

import os
from pathlib import Path

import generate_checkpoint
import written
from in_turn import READS, Checkpoints, Comparison, Packages, Work

CACHE = Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser()
SMOLLM2 = CACHE / "models" / "SmolLM2-135M-Instruct"
HUGGING_FACE = ("hf-fp32", "hf-bf16")
LLAMA_CPP = {"llama.cpp-q8_0": "q8_0", "llama.cpp-f16": "f16"}  # and the file's quantization


def directory_of_model(given, directory):
    """The model that was given, else SmolLM2, else one of its shape, which is written into `directory`."""
    if given or SMOLLM2.is_dir():
        return Path(given or SMOLLM2)
    return written.once(directory / "hf", generate_checkpoint.write_random)


def write_checkpoints(directory, args):
    model = directory_of_model(args.model, directory)
    folder = generate_checkpoint.gguf_folder(model, directory)
    for name in args.contestants:
        if kind := LLAMA_CPP.get(name):
            written.once(folder / f"{kind}.gguf", lambda file, kind=kind: generate_checkpoint.write_gguf(model, file, kind))
    parameters, weights_of_a_step, head = generate_checkpoint.sizes_of(model)
    return Checkpoints(
        directories={"plimsoll": model, "hf": model, "llama.cpp": folder},
        parameters=parameters,
        weights_of_a_step=weights_of_a_step,
        bf16_beside_codes=head,
        first_token=["generate", "--model", model, "--prompt", "a", "--temperature", 0, "--tokens", 1],
    )


PEERS = (*HUGGING_FACE, *LLAMA_CPP)
COMPARISON = Comparison(
    worker="generate_worker.py",
    ours={"fp32": "read-fp32", "bf16": "read-bf16", "fp16": "read-bf16", "fp8": "read-fp8"},
    peers=PEERS,
    works={
        "prompt-512": Work({"read": 512, "write": 1}, PEERS, None),
        "stream-128": Work({"read": 512, "write": 129}, (*PEERS, *READS), None),
    },
    packages={name: Packages(("llama_cpp", "gguf"), "llama-cpp-python==0.3.36 gguf==0.19.0") for name in LLAMA_CPP},
    write_checkpoints=write_checkpoints,
)


def main():
    parser = COMPARISON.parser(__doc__.partition("\n\n")[0])
    parser.add_argument("--model", help="a Hugging Face directory with tokenizer.json")
    COMPARISON.run(COMPARISON.parse(parser))


if __name__ == "__main__":
    main()
