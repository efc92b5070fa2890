"""Log probabilities of one text's tokens as several programs of the same weights compute them, and how far they are apart.

    .venv/bin/python bench/logprobs.py --model DIR --data FILE [--tokens 257] [--context 64] [--threads 2] [--json FILE]

Ours: `plimsoll logprobs` as prefill, decode and serve, each against train, in every dtype of --dtypes; exit code 1 unless all are
equal to the last bit. transformers' in --peer-dtype: a window in a batch of others against alone, token after token over a cache
against whole, eager attention against sdpa; its logits come in that dtype, and log-softmax is computed in double.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import json_file

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("train", "prefill", "decode", "serve")
BATCH = 16


def difference(reference, other):
    """Distances of two lists of log probabilities. ratio: mean |exp(d) - 1|, by which importance weights are off."""
    if len(reference) != len(other):
        raise SystemExit(f"logprobs: expected {len(reference)} tokens, got {len(other)}")
    apart = [b - a for a, b in zip(reference, other, strict=True)]
    return {
        "tokens": len(apart),
        "different": sum(d != 0 for d in apart),
        "largest": max(map(abs, apart)),
        "mean": math.fsum(map(abs, apart)) / len(apart),
        "ratio": math.fsum(abs(math.expm1(d)) for d in apart) / len(apart),
    }


def windows_of(ids, context):
    """As `plimsoll logprobs` cuts a text: each window's tokens, with the one that follows its last."""
    return [ids[begin : begin + context + 1] for begin in range(0, len(ids) - 1, context)]


def rows_beside(ids, count, context, seed=0):
    """Pieces of the text between half a window and one and a half, so that a window among them is padded."""
    generator = random.Random(seed)
    lengths = [min(len(ids), 3 * context // 2)] + [generator.randint(context // 2, 3 * context // 2) for _ in range(count - 1)]
    starts = [generator.randint(0, max(0, len(ids) - length)) for length in lengths]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)][:count]


def pad(rows, side, token=0):
    """(rows of one length, mask) with padding on a side, "left" or "right"."""
    length = max(map(len, rows))
    padded, mask = [], []
    for row in rows:
        gap = [token] * (length - len(row))
        padded.append(gap + row if side == "left" else row + gap)
        mask.append([0] * len(gap) + [1] * len(row) if side == "left" else [1] * len(row) + [0] * len(gap))
    return padded, mask


def positions_of(mask):
    """0, 1, ... for the tokens of each row; 0 for padding."""
    result = []
    for row in mask:
        places = [sum(row[:i]) for i in range(len(row))]
        result.append([place if is_token else 0 for place, is_token in zip(places, row, strict=True)])
    return result


def ours(args):
    """{dtype: {way: log probabilities}}, and the ids that they are of."""
    found: dict[str, dict[str, list[float]]] = {}
    ids: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in args.dtypes:
            found[dtype] = {}
            for way in WAYS:
                file = Path(folder) / f"{dtype}-{way}"
                words = ["logprobs", "--model", args.model, "--data", args.data, "--dtype", dtype, "--as", way]
                words += ["--context", args.context, "--tokens", args.tokens, "--batch", BATCH, "--threads", args.threads]
                program = Path(args.build) / "bin" / "plimsoll"
                subprocess.run([str(word) for word in [program, *words, "--json", file]], check=True, stdout=sys.stderr)
                rows = [json.loads(line) for line in file.read_text().splitlines()]
                found[dtype][way] = [row["log_probability"] for row in rows]
                ids = [row["id"] for row in rows]
            print(f"plimsoll {dtype}: done", file=sys.stderr)
    return found, ids


class Peer:
    """transformers over the same windows."""

    def __init__(self, args, ids):
        import torch
        import transformers

        self.torch, self.windows, self.ids = torch, windows_of(ids, args.context), ids
        self.beside = rows_beside(ids, max(0, BATCH - len(self.windows)), args.context)
        torch.set_num_threads(args.threads)
        torch.set_grad_enabled(False)
        kind = transformers.AutoModelForCausalLM
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.peer_dtype]
        self.load = lambda attention: kind.from_pretrained(args.model, dtype=dtype, attn_implementation=attention).eval()
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def picked(self, logits, targets):
        logs = self.torch.log_softmax(logits.double(), -1)
        return logs.gather(-1, self.torch.tensor(targets)[:, None])[:, 0].tolist()

    def alone(self, model):
        result = []
        for window in self.windows:
            result += self.picked(model(self.torch.tensor([window[:-1]])).logits[0], window[1:])
        return result

    def cached(self, model):
        result = []
        for window in self.windows:
            past = None
            for token, target in zip(window[:-1], window[1:], strict=True):
                step = model(self.torch.tensor([[token]]), past_key_values=past, use_cache=True)
                past = step.past_key_values
                result += self.picked(step.logits[0], [target])
        return result

    def together(self, model, side):
        rows, mask = pad([window[:-1] for window in self.windows] + self.beside, side)
        tensor = self.torch.tensor
        logits = model(tensor(rows), attention_mask=tensor(mask), position_ids=tensor(positions_of(mask))).logits
        result = []
        for row, window in enumerate(self.windows):
            length = len(window) - 1
            place = slice(len(rows[0]) - length, None) if side == "left" else slice(length)
            result += self.picked(logits[row, place], window[1:])
        return result

    def rows(self, dtype):
        """A row for each way, against windows alone and whole with sdpa."""
        model = self.load("sdpa")
        reference, rows = self.alone(model), []
        batch = max(BATCH, len(self.windows))
        for way, compute in (
            ("the same again", self.alone),
            (f"in a batch of {batch}, padded right", lambda one: self.together(one, "right")),
            (f"in a batch of {batch}, padded left", lambda one: self.together(one, "left")),
            ("token after token over a cache", self.cached),
        ):
            rows.append({"who": "transformers", "dtype": dtype, "way": way, **difference(reference, compute(model))})
            print(f"transformers {way}: done", file=sys.stderr)
        way = "eager attention instead of sdpa"
        return [
            *rows,
            {"who": "transformers", "dtype": dtype, "way": way, **difference(reference, self.alone(self.load("eager")))},
        ]


def our_rows(found):
    """A row for each dtype and way, against train."""
    return [
        {"who": "plimsoll", "dtype": dtype, "way": way, **difference(logs["train"], logs[way])}
        for dtype, logs in found.items()
        for way in WAYS[1:]
    ]


def table(rows):
    lines = [f"{'who':14}{'dtype':7}{'way':36}{'differ':>12}{'largest':>10}{'mean':>10}{'|ratio - 1|':>13}"]
    for row in rows:
        share = f"{row['different']} of {row['tokens']}"
        lines.append(
            f"{row['who']:14}{row['dtype']:7}{row['way']:36}{share:>12}{row['largest']:10.3g}{row['mean']:10.3g}{row['ratio']:13.3g}"
        )
    return "\n".join(lines)


def unequal(rows):
    """Ours that are not equal to the last bit."""
    return [f"{row['dtype']} as {row['way']}" for row in rows if row["who"] == "plimsoll" and row["different"]]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", required=True, help="a Hugging Face directory")
    parser.add_argument("--data", required=True, help="a text")
    parser.add_argument("--tokens", type=int, default=257, help="of the text")
    parser.add_argument("--context", type=int, default=64, help="tokens of a window")
    parser.add_argument("--dtypes", default="fp32,bf16,fp16,fp8", help="ours")
    parser.add_argument("--peer-dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    args.dtypes = args.dtypes.split(",")
    return args


def main():
    args = parse_arguments()
    found, ids = ours(args)
    rows, version = our_rows(found), None
    if not args.no_peer:
        import transformers

        text = Path(args.data).read_text()
        all_ids = transformers.AutoTokenizer.from_pretrained(args.model)(text)["input_ids"][: len(ids) + 1]
        if all_ids[1:] != ids:
            raise SystemExit("logprobs: expected the tokens of transformers' tokenizer, got others")
        peer = Peer(args, all_ids)
        version = peer.version
        rows += peer.rows(args.peer_dtype)
    print(table(rows))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "version": version, "rows": rows})
    if unequal(rows):
        raise SystemExit(f"logprobs: expected the bits of train, got others in {', '.join(unequal(rows))}")


if __name__ == "__main__":
    main()
