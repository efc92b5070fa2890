"""The same weights in C++'s Gpt and in the modules of Python give the same bits, step by step."""

import os
import pathlib
import subprocess

import oracle
import plimsoll.pytorch as te
import pytest
import torch

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
LAYERS, DIM, HEADS, VOCABULARY, CONTEXT = 2, 32, 4, 50, 12


class Weight(torch.nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns))


class Gpt(torch.nn.Module):
    """models::Gpt's children by their names."""

    def __init__(self):
        super().__init__()
        self.token_embedding = Weight(VOCABULARY, DIM)
        self.position_embedding = Weight(CONTEXT, DIM)
        self.blocks = torch.nn.ModuleList(
            te.TransformerLayer(
                DIM,
                4 * DIM,
                HEADS,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                fuse_qkv_params=True,
                qkv_weight_interleaved=False,
                attn_input_format="bshd",
            )
            for _ in range(LAYERS)
        )
        self.norm = te.LayerNorm(DIM)
        self.head = te.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens, dtype):
        x = torch.ops.plimsoll.embedding(tokens, self.token_embedding.weight, self.position_embedding.weight, dtype=dtype)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        with te.fp8_autocast(enabled=False), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return self.head(x).float()


@pytest.mark.parametrize("wide", ["fp32", "bf16"])
@pytest.mark.parametrize("name", oracle.RECIPES)
def test_logits_gradients_and_state_are_those_of_cpp(name, wide, tmp_path):
    text = oracle.RECIPES[name].to_json(wide)
    file = tmp_path / "values.pt"
    subprocess.run([BUILD / "bin" / "gpt_reference", text, file, "2"], check=True, timeout=300)
    values = torch.load(file, weights_only=False)  # written by the line above
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[wide]
    model = Gpt()
    parameters = {key.removeprefix("parameter "): value for key, value in values.items() if key.startswith("parameter ")}
    assert parameters.keys() == {key for key, _ in model.named_parameters()}
    model.load_state_dict(parameters)
    for step in "01":
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=wide != "fp32"), te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]):
            logits = model(values[f"{step} tokens"], dtype)
        assert torch.equal(logits, values[f"{step} logits"])
        logits.backward(values[f"{step} grad"])
        for key, buffer in model.named_buffers():
            if key.startswith("head."):  # never codes; C++ has no buffers for it
                assert buffer.count_nonzero() == 0
            elif wide == "fp32" or not key.rpartition("grad_output")[1]:
                assert torch.equal(buffer, values[f"{step} buffer {key}"]), key
        # C++ hands a layer's last addition to the next layer's norm, whose gradient then rounds to bf16 once, not twice.
        for key, parameter in model.named_parameters():
            if wide == "fp32":
                assert parameter.grad is not None and torch.equal(parameter.grad, values[f"{step} gradient {key}"]), key
