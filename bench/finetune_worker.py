"""One contestant of finetune.py: a step of fine-tuning by transformers, with PEFT's adapters or all weights, run on request.

Protocol of torch_gpt_worker.py. Tokens, optimizer and clipping are those of gpt_step_worker.
"""

import argparse

import peft
import torch
import transformers
from torch_gpt import saved_bytes
from torch_gpt_worker import DTYPES, serve


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True, help="of the weights")
    parser.add_argument("--attention", choices=("sdpa", "eager"), required=True)
    for name in ("context", "batch", "threads", "lora-rank"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=DTYPES[args.dtype], attn_implementation=args.attention
    )
    if args.lora_rank:
        config = peft.LoraConfig(
            r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=True)
    tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss_of():
        return model(input_ids=inputs, labels=targets, shift_labels=targets, use_cache=False).loss

    def step():
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    saved = saved_bytes(lambda: loss_of().backward(), model.parameters())
    optimizer.zero_grad()
    serve(step, saved, f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
