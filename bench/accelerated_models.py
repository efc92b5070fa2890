"""Times plain PyTorch models with plimsoll.accelerate() against torch's own kernels, in turn in one process: the shapes of twelve
models of transformers with random weights, two layers each, forward (without gradients) and a training step (forward, backward and
fused AdamW).

    .venv/bin/python bench/accelerated_models.py [--isa avx2] [--models bert,gpt2] [--dtypes bf16] [--threads 2] [--json FILE]

--isa holds for both sides: PLIMSOLL_ISA for ours, torch's own variables for torch. With one thread the clock is the processor time
of the thread, which neighbours on a shared machine change least.
"""

import argparse
import os
import statistics
import sys
import time

import json_file

# Variables that torch, oneDNN and MKL read. A processor with AVX2 alone has no 16-bit products in oneDNN; torch asks the processor for them,
# not these variables, so that oneDNN is turned off for 16 bits there.
LEVELS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LAYERS, VOCABULARY, TOKENS = 2, 8192, 128
WORKS = ("forward", "training")


def decoder(configuration, model, **sizes):
    """A causal language model of transformers by the names of its classes, and its inputs."""

    def make(transformers, torch):
        config = getattr(transformers, configuration)(vocab_size=VOCABULARY, **sizes)
        tokens = torch.randint(VOCABULARY, (1, TOKENS))
        return getattr(transformers, model)(config), {"input_ids": tokens, "labels": tokens}

    return make


def llama_like(name, width, inner, heads, groups, configuration=None, **more):
    return decoder(
        configuration or f"{name}Config",
        f"{name}ForCausalLM",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        **more,
    )


def encoder(name, width=768):
    return decoder(
        f"{name}Config", f"{name}ForMaskedLM", hidden_size=width, num_hidden_layers=LAYERS, num_attention_heads=width // 64
    )


def t5(transformers, torch):
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=512, d_ff=2048, num_layers=LAYERS, num_heads=8, decoder_start_token_id=0
    )
    tokens = torch.randint(1, VOCABULARY, (1, TOKENS))
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": tokens}


def vit(transformers, torch):
    config = transformers.ViTConfig(num_hidden_layers=LAYERS, num_labels=1000)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(1, 3, 224, 224),
        "labels": torch.zeros(1, dtype=torch.long),
    }


def whisper(transformers, torch):
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(d_model=512, encoder_layers=LAYERS, encoder_attention_heads=8, encoder_ffn_dim=2048)
    return WhisperEncoder(config), {"input_features": torch.randn(1, 80, 3000)}


MODELS = {
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "gpt2": decoder("GPT2Config", "GPT2LMHeadModel", n_embd=768, n_layer=LAYERS, n_head=12),
    "gpt_neox": decoder(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
    ),
    "llama": llama_like("Llama", 576, 1536, 9, 3),
    "mistral": llama_like("Mistral", 1024, 2816, 16, 8),
    "qwen2": llama_like("Qwen2", 896, 4864, 14, 2),
    "qwen3": llama_like("Qwen3", 1024, 3072, 16, 8, head_dim=128),
    "gemma3": llama_like("Gemma3", 640, 2048, 4, 1, configuration="Gemma3TextConfig", head_dim=256),
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
}


def parse():
    parser = argparse.ArgumentParser(description="plimsoll.accelerate() against torch's own kernels")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--isa", choices=LEVELS, help="the level of both sides; the processor's best by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3, help="of a contest, at least three rounds of it")
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    for option, known in (("models", MODELS), ("dtypes", DTYPES), ("works", WORKS)):
        given = getattr(args, option).split(",")
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"--{option}: expected some of {', '.join(known)}, got {', '.join(unknown)}")
        setattr(args, option, given)
    return args


def in_turn(plimsoll, work, seconds, clock):
    """(torch's own, ours): the median of each, in seconds."""

    def once(accelerated):
        plimsoll.accelerate(accelerated)
        begin = clock()
        work()
        return clock() - begin

    times: tuple[list[float], list[float]] = ([], [])
    once(False), once(True)  # the first ones allocate
    begin = time.perf_counter()
    while len(times[0]) < 3 or (time.perf_counter() - begin < seconds and len(times[0]) < 50):
        for accelerated in (False, True):
            times[accelerated].append(once(accelerated))
    plimsoll.accelerate(False)
    return statistics.median(times[0]), statistics.median(times[1])


def works_of(torch, model, inputs):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def forward():
        with torch.inference_mode():
            model(**inputs)

    def training():
        result = model(**inputs)
        loss = result.loss if "loss" in result else result.last_hidden_state.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"forward": forward, "training": training}


def rows_of(args):
    import plimsoll
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    for name in args.models:
        for dtype in args.dtypes:
            torch.manual_seed(0)
            torch.backends.mkldnn.set_flags(not (args.isa == "avx2" and dtype != "fp32"))
            model, inputs = MODELS[name](transformers, torch)
            narrow = getattr(torch, DTYPES[dtype])
            model.to(narrow)
            inputs = {key: x.to(narrow) if x.is_floating_point() else x for key, x in inputs.items()}
            for work, function in works_of(torch, model, inputs).items():
                if work not in args.works:
                    continue
                plimsoll.reset_acceleration_report()
                theirs, ours = in_turn(plimsoll, function, args.seconds, clock)
                yield {
                    "model": name,
                    "dtype": dtype,
                    "work": work,
                    "torch_seconds": theirs,
                    "seconds": ours,
                    "times": theirs / ours,
                    "calls": plimsoll.acceleration_report(),
                }


def begin_at_level(isa):
    """Begins the script anew where it runs at another level: both libraries read theirs as they are loaded."""
    if isa and os.environ.get("PLIMSOLL_ISA") != isa:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **LEVELS[isa], "PLIMSOLL_ISA": isa})


def main():
    args = parse()
    begin_at_level(args.isa)
    rows = []
    print(f"{'model':10}{'dtype':7}{'work':10}{'torch ms':>10}{'ours ms':>10}{'times':>8}   fell through", flush=True)
    for row in rows_of(args):
        rows.append(row)
        through = {
            op: {reason: n for reason, n in counts.items() if n and reason != "replaced"} for op, counts in row["calls"].items()
        }
        reasons = ", ".join(f"{op} {' '.join(counts)}" for op, counts in through.items() if counts)
        print(
            f"{row['model']:10}{row['dtype']:7}{row['work']:10}{1e3 * row['torch_seconds']:10.1f}{1e3 * row['seconds']:10.1f}"
            f"{row['times']:8.2f}   {reasons}",
            flush=True,
        )
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
