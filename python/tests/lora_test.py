"""LoRA of decoder-only models: against transformers with adapters written out, and against PEFT where it is installed."""

import copy
import json
import os
import pathlib
import subprocess

import decoder_models
import pytest
import safetensors.torch
import torch
import transformers
from plimsoll.common import recipe
from plimsoll.models import AutoModelForCausalLM, LoraConfig, PeftModel, get_peft_model

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2", "gpt_neox"]

# Relative L2 of FP32 logits to those of FP64, as docs/decoders.md promises.
LOGITS = 1e-6


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, tmp_path_factory):
    """The directory of a small model with random weights."""
    return decoder_models.save(decoder_models.make(request.param), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return decoder_models.save(decoder_models.make("llama"), tmp_path_factory.mktemp("model"))


def with_adapters(directory, seed=3, **config):
    """Our model whose adapters matter to the logits."""
    torch.manual_seed(seed)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(directory), LoraConfig(**config))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".lora_B." in name:
                tensor.normal_(0, 0.2)
    return model


class Adapted(torch.nn.Module):
    """y = W x + scaling * B (A x), as the paper has it."""

    def __init__(self, linear, a, b, scaling):
        super().__init__()
        self.linear, self.scaling = linear.requires_grad_(False), scaling
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x):
        return self.linear(x) + self.scaling * ((x @ self.a.T) @ self.b.T)


def transformers_with(directory, adapter, dtype):
    """transformers' model with the adapters of a directory."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
    model.requires_grad_(False)
    config = json.loads((adapter / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    tensors = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    ends = ".lora_A.weight"
    for name in [key.removesuffix(ends) for key in tensors if key.endswith(ends)]:
        path = name.removeprefix("base_model.model.")
        linear, (a, b) = model.get_submodule(path), (tensors.pop(f"{name}.lora_{which}.weight") for which in "AB")
        model.set_submodule(path, Adapted(linear, a.to(dtype), b.to(dtype), scaling))
    assert not tensors
    return model


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


def relative(ours, expected):
    return ((ours.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("use_rslora", [False, True])
def test_logits_are_those_of_transformers_in_double(base, use_rslora, tmp_path):
    ours = with_adapters(base, r=5, lora_alpha=7, target_modules="all-linear", use_rslora=use_rslora)
    ours.save_pretrained(tmp_path)
    ids = decoder_models.tokens(3, 31)
    expected = logits(transformers_with(base, tmp_path, torch.float64), ids)
    assert relative(logits(ours, ids), expected) <= LOGITS
    assert relative(logits(AutoModelForCausalLM.from_pretrained(base), ids), expected) > 0.01


def test_every_linear_layer_of_the_blocks_is_all_linear_and_the_head_is_not(base, tmp_path):
    with_adapters(base, target_modules="all-linear").save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base)
    kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    linears = {name for name, module in theirs.named_modules() if isinstance(module, kinds)}
    heads = {name for name, module in theirs.named_modules() if module is theirs.get_output_embeddings()}
    stored = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    assert {key.removeprefix("base_model.model.").rsplit(".", 2)[0] for key in stored} == linears - heads


def batches(count):
    """Two batches in turn: rows of unlike lengths, padded, of which the first tokens do not count."""
    for step in range(count):
        ids = decoder_models.tokens(3, 24, seed=step % 2)
        mask = (torch.arange(24) < torch.tensor([[24], [17], [9]])).long()
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :3] = -100
        yield {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


def train(model, steps=20):
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.01)
    losses = []
    for batch in batches(steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_losses_of_20_steps_are_those_of_transformers(llama, checkpointed, tmp_path):
    torch.manual_seed(4)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    ours = get_peft_model(AutoModelForCausalLM.from_pretrained(llama), config)
    if checkpointed:
        ours.gradient_checkpointing_enable()
    ours.save_pretrained(tmp_path)
    expected = train(transformers_with(llama, tmp_path, torch.float32))
    got = train(ours)
    assert expected[-1] < 0.8 * expected[0]
    assert ((got - expected).abs() <= 1e-4 * expected).all(), (got, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_as_near_to_double_as_those_of_transformers(name, tmp_path):
    directory = decoder_models.save(decoder_models.make(name), tmp_path / "base")
    ours = with_adapters(directory, r=5, target_modules="all-linear")
    ours.save_pretrained(tmp_path / "adapter")
    batch = next(batches(1))
    if name == "gemma3_text":  # of padded rows transformers in double makes NaN
        del batch["attention_mask"]

    def gradients(model):
        model(**batch).loss.backward()
        return {key: tensor.grad.double() for key, tensor in model.named_parameters() if tensor.grad is not None}

    exactly, roughly = (
        gradients(transformers_with(directory, tmp_path / "adapter", dtype)) for dtype in (torch.float64, torch.float32)
    )
    got = gradients(ours)
    assert len(got) == len(exactly)
    for key, reference in exactly.items():
        mine = got[
            "base_model."
            + key.removesuffix(".a").removesuffix(".b")
            + (".lora_A.weight" if key.endswith(".a") else ".lora_B.weight")
        ]
        if name == "gpt_neox" and "query_key_value.b" in key:  # rows of queries, of keys, of values
            heads = ours.config.num_attention_heads
            mine = mine.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
        # Sums over other trees: up to four times the error of the same precision, or a rounding of each element.
        bound = 4 * (roughly[key] - reference).norm() + 2**-23 * reference.norm()
        assert (mine - reference).norm() <= bound, key


def test_what_is_loaded_is_what_was_saved(base, tmp_path):
    ours = with_adapters(base, r=3, lora_alpha=5, lora_dropout=0.1, target_modules="all-linear")
    ours.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path)
    ids = decoder_models.tokens(2, 20)
    assert torch.equal(logits(again, ids), logits(ours, ids))
    assert again.peft_config.r == 3 and again.peft_config.lora_dropout == 0.1
    assert again.get_nb_trainable_parameters()[0] == 0
    trains = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path, is_trainable=True)
    assert trains.get_nb_trainable_parameters() == ours.get_nb_trainable_parameters()
    assert torch.equal(copy.deepcopy(ours).generate(ids, max_new_tokens=5), ours.generate(ids, max_new_tokens=5))


def test_a_merged_model_is_plain_and_computes_the_same(base, tmp_path):
    ours = with_adapters(base, r=5, target_modules="all-linear")
    ours.save_pretrained(tmp_path / "adapter")
    ids = decoder_models.tokens(2, 20)
    expected = logits(transformers_with(base, tmp_path / "adapter", torch.float64), ids)
    merged = ours.merge_and_unload()
    assert not any("lora" in name for name in merged.state_dict())
    merged.save_pretrained(tmp_path / "merged")
    command = [BUILD / "bin" / "plimsoll", "merge", "--model", base, "--adapter", tmp_path / "adapter", "--out", tmp_path / "out"]
    subprocess.run(command, check=True, capture_output=True)
    assert (
        safetensors.torch.load_file(tmp_path / "out" / "model.safetensors").keys()
        == safetensors.torch.load_file(pathlib.Path(base) / "model.safetensors").keys()
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    # A rounding of each weight beside those of the products.
    assert relative(logits(merged, ids), expected) <= 2 * LOGITS
    assert relative(logits(theirs, ids), expected) <= 2 * LOGITS
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.equal(logits(again, ids), logits(merged, ids))


def test_merging_warns_of_weights_that_the_dtype_cannot_hold(llama):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float16), LoraConfig(r=2))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".lora_" in name:
                tensor.fill_(1e3)
    with pytest.warns(UserWarning, match="merge_and_unload: [0-9]+ weights are beyond fp16 and became Inf: "):
        model.merge_and_unload()


def test_adapters_train_under_recipes_while_the_base_is_frozen(llama):
    for each in (recipe.DelayedScaling(), recipe.Float8CurrentScaling()):
        torch.manual_seed(5)
        base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16, recipe=each)
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules="all-linear"))
        before = {name: tensor.clone() for name, tensor in model.named_parameters() if not tensor.requires_grad}
        batch = next(batches(1))
        optimizer = torch.optim.AdamW([tensor for tensor in model.parameters() if tensor.requires_grad], lr=1e-2)
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = model.train()(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0], losses
        assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in before.items())
        assert {tensor.dtype for tensor in model.parameters() if tensor.requires_grad} == {torch.float32}


def test_targets_are_peftss_choice_where_none_are_given(base):
    model = with_adapters(base)
    names = {name.split(".lora_")[0].rsplit(".", 1)[1] for name, tensor in model.named_parameters() if tensor.requires_grad}
    family = model.config.model_type
    assert names == {"gpt2": {"c_attn"}, "gpt_neox": {"query_key_value"}}.get(family, {"q_proj", "v_proj"})


def test_mistakes_are_named(llama, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(llama)
    with pytest.raises(ValueError, match="expected targets among all-linear, down_proj, .* got 'c_attn'"):
        get_peft_model(model, LoraConfig(target_modules=["q_proj", "c_attn"]))
    with pytest.raises(RuntimeError, match='LoraConfig: bias: expected "none", got "all"'):
        get_peft_model(model, LoraConfig(bias="all"))
    with pytest.raises(RuntimeError, match="LoraConfig: r: expected 1 or more, got 0"):
        get_peft_model(model, LoraConfig(r=0))
    with pytest.raises(RuntimeError, match="LoraConfig: use_dora: expected none: it is not supported, got true"):
        get_peft_model(model, LoraConfig(use_dora=True))
    with pytest.raises(ValueError, match="expected init_lora_weights=True, got 'pissa'"):
        get_peft_model(model, LoraConfig(init_lora_weights="pissa"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a plimsoll.models.LoraConfig, got {.r.: 3}"):
        get_peft_model(model, {"r": 3})  # type: ignore[arg-type]
    peft_defaults = {"inference_mode": False, "use_dora": False, "modules_to_save": None, "fan_in_fan_out": False}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=True, **peft_defaults))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a model without adapters, got one that has some"):
        get_peft_model(model, LoraConfig())
    with pytest.raises(RuntimeError, match="save: expected a model without adapters"):
        model.save_pretrained(tmp_path)
    adapted.merge_and_unload().save_pretrained(tmp_path)
    missing = subprocess.run(
        [BUILD / "bin" / "plimsoll", "merge", "--model", llama, "--adapter", tmp_path, "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 1 and missing.stderr.count("\n") == 1 and "adapter_config.json" in missing.stderr
    assert not (tmp_path / "out").exists()


# With the real PEFT: its files are read here, ours there, and it trains alike.


def peft_model(directory, **config):
    peft = pytest.importorskip("peft")
    torch.manual_seed(6)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    return peft.get_peft_model(theirs, peft.LoraConfig(task_type="CAUSAL_LM", **config)).eval()


def of_double(theirs, ids):
    return logits(copy.deepcopy(theirs).double(), ids)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_we_read_what_peft_has_written(base, tmp_path):
    theirs = peft_model(base, r=5, lora_alpha=7, target_modules="all-linear", init_lora_weights=False)
    theirs.save_pretrained(tmp_path)
    ours = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path)
    ids = decoder_models.tokens(3, 31)
    assert relative(logits(ours, ids), of_double(theirs, ids)) <= LOGITS


@pytest.mark.parametrize("use_rslora", [False, True])
def test_peft_reads_what_we_have_written(base, use_rslora, tmp_path):
    peft = pytest.importorskip("peft")
    ours = with_adapters(base, r=5, lora_alpha=7, target_modules="all-linear", use_rslora=use_rslora)
    ours.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path).eval()
    ids = decoder_models.tokens(3, 31)
    assert relative(logits(ours, ids), of_double(theirs, ids)) <= LOGITS


def test_losses_of_20_steps_are_those_of_peft(llama, tmp_path):
    theirs = peft_model(llama, r=4, lora_alpha=8, target_modules="all-linear")
    theirs.save_pretrained(tmp_path)  # the A that both begin with
    ours = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), tmp_path, is_trainable=True)
    expected, got = train(theirs), train(ours)
    assert ((got - expected).abs() <= 1e-4 * expected).all(), (got, expected)
