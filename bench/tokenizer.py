"""Encoding with tokenizer.json, ours and Hugging Face's `tokenizers` in turn, each on one thread: MB of text a second.

Usage: tokenizer.py [--rounds 5] [--cache DIR]. The texts are the standard library's files, whole and line by line; the tokenizers
those that tools/fetch_tokenizers fetched. Each side encodes all texts twice a round, and the second time counts.
"""

import argparse
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))

import tokenizer_texts  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", ROOT / "build")) / "bin" / "tokenizer_program"
NAMES = ("smollm2", "qwen3", "llama3", "gemma3")


def our_seconds(folder, texts):
    requests = b"".join(struct.pack("<I", len(blob)) + blob for blob in map(str.encode, texts))
    result = subprocess.run([PROGRAM, folder, "--time"], input=requests, capture_output=True, check=True)
    return float(result.stdout)


def their_seconds(tokenizer, texts):
    for _ in range(2):
        begin = time.perf_counter()
        for text in texts:
            tokenizer.encode(text)
        seconds = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")))
    options = parser.parse_args()
    files = tokenizer_texts.standard_library()
    kinds = {"files": files[::4], "lines": [line for file in files[::4] for line in file.splitlines(keepends=True)]}
    print(f"{'tokenizer':<10}{'texts':<8}{'ours MB/s':>10}{'theirs MB/s':>12}{'ratio':>7}")
    for name in NAMES:
        folder = options.cache.expanduser() / "tokenizers" / name
        if not folder.is_dir():
            sys.exit(f"tokenizer.py: expected {folder}; tools/fetch_tokenizers fetches it")
        theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for kind, texts in kinds.items():
            megabytes = sum(len(text.encode()) for text in texts) / 1e6
            rounds = [(our_seconds(folder, texts), their_seconds(theirs, texts)) for _ in range(options.rounds)]
            ours, others = (statistics.median(column) for column in zip(*rounds, strict=True))
            ratio = statistics.median(other / our for our, other in rounds)
            print(f"{name:<10}{kind:<8}{megabytes / ours:>10.1f}{megabytes / others:>12.1f}{ratio:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
