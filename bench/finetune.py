"""Times one step of fine-tuning SmolLM2-135M by Plimsoll and by transformers with PEFT, in turn: the same weights, tokens, batch, threads,
optimizer and clipping.

    .venv/bin/python bench/finetune.py [--rounds 3] [--contestants full-bf16,full-hf-bf16-sdpa,...] [--model DIR] [--json FILE]

full: all weights train. lora: adapters of all linear layers, of rank 16, on a frozen base. Ours: full-RECIPE with FP32 weights; full-narrow
with weights, gradients and states in BF16 alone, as theirs in BF16; full-small with BF16 weights alone, 8-bit states and gradients released in
backward (without clipping), full-smallest with checkpointed activations, too;
lora-bf16 and lora-fp8, on a base in BF16 and as FP8 codes. Theirs: weights in FP32 or BF16, either attention of transformers, huge pages
and glibc's large thresholds. Each turn is a new process: a forward and backward pass that counts what autograd saves, or a
step, then one step more that is not timed, then one that is. Prints for each work what gpt_step.py prints; the peer is the fastest of theirs.
"""

import decoder_steps
import gpt_step
import json_file

RANK = 16
WORKS = ("full", "lora")
SMALL = ["--recipe=bf16", "--weights=bf16", "--optimizer-state=8bit", "--masters=none", "--release-gradients"]
OURS = {
    "full-fp32": ["--recipe=fp32"],
    "full-bf16": ["--recipe=bf16"],
    "full-fp8": ["--recipe=fp8"],
    "full-narrow": ["--recipe=bf16", "--weights=bf16", "--optimizer-state=bf16", "--masters=none"],
    "full-small": SMALL,
    "full-smallest": [*SMALL, "--checkpoint-activations"],
    "lora-bf16": ["--recipe=bf16", "--weights=bf16", f"--lora-rank={RANK}"],
    "lora-fp8": ["--recipe=fp8", "--weights=fp8", f"--lora-rank={RANK}"],
}
THEIRS = {
    f"{work}-hf-{dtype}-{attention}": [
        "finetune_worker.py",
        f"--dtype={dtype}",
        f"--attention={attention}",
        f"--lora-rank={RANK if work == 'lora' else 0}",
    ]
    for work in WORKS
    for dtype in ("fp32", "bf16")
    for attention in ("sdpa", "eager")
}


def works_of(runners, tokens):
    """{work: (its peer, a row for each of its contestants)}."""
    by_work = {work: [one for one in runners if one.name.startswith(f"{work}-")] for work in WORKS}
    return {work: gpt_step.rows_of(ones, [], tokens, peers=tuple(THEIRS)) for work, ones in by_work.items() if ones}


def main():
    names = (*THEIRS, *OURS)
    args = decoder_steps.parse(decoder_steps.parser_of(__doc__.partition("\n\n")[0], names), names)
    runners = decoder_steps.measured(args, THEIRS, OURS, restart=True)
    works = works_of(runners, args.batch * args.context)
    for peer, rows in works.values():
        print(gpt_step.table(peer, rows))
    if args.json:
        tables = {work: {"peer": peer, "rows": rows} for work, (peer, rows) in works.items()}
        json_file.write(args.json, {"arguments": vars(args), "works": tables})


if __name__ == "__main__":
    main()
