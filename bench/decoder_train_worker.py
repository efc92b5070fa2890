"""One contestant of decoder_train.py: transformers' training step of a decoder, run on request.

Protocol of torch_gpt_worker.py.
"""

import argparse

import torch
import transformers
from torch_gpt import saved_bytes
from torch_gpt_worker import serve


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    for name in ("context", "batch", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss_of():
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            return model(inputs, labels=targets, shift_labels=targets, use_cache=False).loss

    def step():
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    saved = saved_bytes(lambda: loss_of().backward(), model.parameters())
    optimizer.zero_grad()
    serve(step, saved, f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
