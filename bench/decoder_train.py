"""Times one training step of SmolLM2-135M by Plimsoll and by transformers, in turn: the same weights, batch, threads, optimizer and clipping.

    .venv/bin/python bench/decoder_train.py [--rounds 3] [--contestants hf-fp32,hf-bf16,fp32,bf16,fp8] [--model DIR] [--json FILE]

Weights are held in FP32, as generate.py finds or makes them. hf-bf16 is autocast; both of transformers run with huge pages and glibc's
large thresholds. Prints what gpt_step.py prints; the peer is the faster of the two.
"""

import decoder_steps
import gpt_step
import json_file

THEIRS = {f"hf-{dtype}": ["decoder_train_worker.py", f"--dtype={dtype}"] for dtype in ("fp32", "bf16")}
OURS = {
    recipe: [f"--recipe={recipe}"]
    for recipe in ("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-row", "fp8-block", "mxfp8", "nvfp4", "mxfp4")
}


def main():
    parser = decoder_steps.parser_of(__doc__.partition("\n\n")[0], (*THEIRS, "fp32", "bf16", "fp8"))
    parser.add_argument("--restart", action="store_true", help="a new process at each turn, where memory is short")
    args = decoder_steps.parse(parser, (*THEIRS, *OURS))
    runners = decoder_steps.measured(args, THEIRS, OURS, args.restart)
    peer, rows = gpt_step.rows_of(runners, [], args.batch * args.context, peers=tuple(THEIRS))
    print(gpt_step.table(peer, rows))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "peer": peer, "rows": rows})


if __name__ == "__main__":
    main()
