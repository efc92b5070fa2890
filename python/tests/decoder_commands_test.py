"""plimsoll generate, train and convert on Hugging Face directories of decoder-only models, against transformers."""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess

import launched_ranks
import plimsoll.models as plimsoll_models
import pytest
import tiny_llama
import tokenizer_texts
import torch
from program import PROGRAM, done, interrupted, plimsoll
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SMOLLM2 = pathlib.Path(os.environ.get("PLIMSOLL_CACHE", "~/.cache/plimsoll")).expanduser() / "models" / "SmolLM2-135M-Instruct"
TEXT = tokenizer_texts.python_source()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A small llama with random weights, and a tokenizer of byte pairs without special tokens around a text."""
    return tiny_llama.write(tmp_path_factory.mktemp("tiny"), spare_tokens=3)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def run(tiny, text, tmp_path_factory):
    """Continued training of the small llama."""
    folder = tmp_path_factory.mktemp("run") / "run"
    options = "--steps 8 --warmup 1 --batch 4 --context 32 --eval-windows 4 --recipe fp32 --lr 1e-2 --threads 2".split()
    done("train", "--model", tiny, "--data", text, "--out", folder, *options)
    return folder


def greedy(folder, prompt, tokens, tmp_path, *more):
    """The ids that plimsoll generate draws."""
    options = ["--prompt", prompt, "--temperature", 0, "--tokens", tokens, "--dtype", "fp32", "--json", tmp_path / "log"]
    done("generate", "--model", folder, *options, *more)
    return [line["id"] for line in map(json.loads, (tmp_path / "log").read_text().splitlines()) if "id" in line]


def greedy_of_transformers(folder, prompt, tokens):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        return model.generate(**ids, max_new_tokens=tokens, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()


def test_greedy_texts_are_those_of_transformers(tiny, tmp_path):
    for prompt in ("def ", "The caf\u00e9", "1984"):
        assert greedy(tiny, prompt, 40, tmp_path) == greedy_of_transformers(tiny, prompt, 40)


def test_greedy_texts_of_smollm2_are_those_of_transformers(tmp_path):
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is missing; tools/import_gguf makes it")
    for prompt in ("The capital of France is", "def fibonacci(n):"):
        assert greedy(SMOLLM2, prompt, 24, tmp_path) == greedy_of_transformers(SMOLLM2, prompt, 24)
    for dtype in ("stored", "fp8"):
        words = ("--chat", "--prompt", "What is the capital of France?", "--temperature", 0, "--dtype", dtype)
        assert done("generate", "--model", SMOLLM2, *words) == "The capital of France is Paris.\n"


def test_an_adapter_writes_what_python_writes_with_it(tiny, tmp_path):
    torch.manual_seed(2)
    base = plimsoll_models.AutoModelForCausalLM.from_pretrained(tiny)
    model = plimsoll_models.get_peft_model(base, plimsoll_models.LoraConfig(target_modules="all-linear"))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".lora_B." in name:
                tensor.normal_(0, 0.2)
    model.save_pretrained(tmp_path / "adapter")
    ids = AutoTokenizer.from_pretrained(tiny)("def main", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=20)[0, ids.size(1) :].tolist()
    assert greedy(tiny, "def main", 20, tmp_path, "--adapter", tmp_path / "adapter") == expected
    assert greedy(tiny, "def main", 20, tmp_path) != expected


def test_every_dtype_writes_with_keys_and_values_as_computed_or_in_codes(tiny):
    for dtype in ("stored", "fp32", "bf16", "fp16", "fp8"):
        for kv in ("computed", "bf16", "fp8"):
            words = ("--prompt", "def ", "--tokens", 5, "--dtype", dtype, "--kv", kv)
            assert done("generate", "--model", tiny, *words).startswith("def ")


def test_keys_and_values_in_codes_are_other_numbers(tiny, tmp_path):
    logs = []
    for kv in ("computed", "bf16", "fp8"):
        log = tmp_path / f"{kv}.jsonl"
        done("generate", "--model", tiny, "--prompt", "def ", "--tokens", 5, "--temperature", 0, "--kv", kv, "--json", log)
        logs.append([json.loads(line) for line in log.read_text().splitlines()])
    numbers = [[line.get("log_probability") for line in log] for log in logs]
    assert all(numbers[i] != numbers[j] for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_run_goes_on_where_the_directory_stood(tiny, run):
    steps = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert losses[-1] < losses[0]
    with torch.inference_mode():
        tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny)
        ids = tokenizer(TEXT, return_tensors="pt")["input_ids"][0].unfold(0, 33, 32)
        each = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits.mT, ids[:, 1:], reduction="none").mean(1)
    # The first batch is some windows of the text.
    assert each.min().item() < losses[0] < each.max().item()
    assert done("generate", "--model", run, "--prompt", "def ", "--tokens", 5).startswith("def ")


def test_a_run_becomes_a_directory_that_transformers_loads(tiny, run, tmp_path):
    done("convert", "--model", run, "--out", tmp_path / "out")
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (tiny, tmp_path / "out"))
    assert before.config.to_diff_dict() == after.config.to_diff_dict()
    assert not torch.equal(before.model.embed_tokens.weight, after.model.embed_tokens.weight)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    assert greedy(tmp_path / "out", "def ", 20, tmp_path) == greedy_of_transformers(tmp_path / "out", "def ", 20)


def test_convert_rounds_the_weights(tiny, tmp_path):
    done("convert", "--model", tiny, "--out", tmp_path / "out", "--dtype", "bf16")
    source, converted = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tiny, tmp_path / "out"))
    assert source.keys() == converted.keys()
    for name, weight in source.items():
        assert converted[name].dtype == torch.bfloat16
        assert torch.equal(converted[name], weight.bfloat16()), name


def test_a_new_model_takes_config_and_tokenizer(tiny, text, tmp_path):
    options = "--steps 2 --warmup 1 --batch 2 --context 32 --eval-windows 2 --recipe bf16 --threads 2".split()
    done("train", "--config-of", tiny, "--data", text, "--out", tmp_path / "run", *options)
    (first, *_) = [json.loads(line) for line in (tmp_path / "run" / "train.jsonl").read_text().splitlines()]
    assert math.isfinite(first["loss"])
    assert done("generate", "--model", tmp_path / "run", "--prompt", "a", "--tokens", 3).startswith("a")


def by_two_ranks(tiny, text, out, recipe, shard):
    """The weights after four steps, whole."""
    options = "--steps 4 --warmup 1 --batch 4 --context 32 --eval-windows 2 --threads 1 --deadline 60".split()
    command = [*launched_ranks.words(2), PROGRAM, "train", "--config-of", tiny, "--data", text, "--out", out, *options]
    command += ["--recipe", recipe, "--shard", shard]
    environment = launched_ranks.environment()
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    (folder,) = out.glob("step-*4")
    done("consolidate", folder, "--out", out / "whole.safetensors")
    return load_file(out / "whole.safetensors")


@pytest.mark.parametrize("recipe", ["fp32", "fp8"])
def test_two_ranks_train_a_decoder_with_the_same_bits_however_it_is_sharded(tiny, text, recipe, tmp_path):
    expected = by_two_ranks(tiny, text, tmp_path / "ddp", recipe, "ddp")
    for shard in ("zero1", "zero2", "fsdp"):
        weights = by_two_ranks(tiny, text, tmp_path / shard, recipe, shard)
        assert weights.keys() == expected.keys()
        assert [name for name, weight in weights.items() if not torch.equal(weight, expected[name])] == [], shard


def test_inspect_lists_the_tensors_of_a_file_or_of_shards(tiny, tmp_path):
    AutoModelForCausalLM.from_pretrained(tiny).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    reports = []
    for folder in (tiny, tmp_path / "shards"):
        done("inspect", folder, "--json", tmp_path / "log")
        reports.append(sorted((tmp_path / "log").read_text().splitlines()))
    state = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
    assert reports[0] == reports[1]
    assert {json.loads(line)["name"]: json.loads(line)["shape"] for line in reports[0]} == {
        name: list(tensor.shape) for name, tensor in state.items()
    }
    count = sum(tensor.numel() for tensor in state.values())
    assert f"{len(state)} tensors, {count / 1e6:.2f} M values." in done("inspect", tiny)


def test_compare_measures_how_far_two_models_are_apart(tiny, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        model.model.norm.weight[3] += 0.5
        model.lm_head.weight.mul_(1.25)
    model.config.rms_norm_eps = 1e-5
    model.save_pretrained(tmp_path / "changed")
    said = done("compare", tiny, tmp_path / "changed", "--json", tmp_path / "log")
    before, after = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tiny, tmp_path / "changed"))
    for line in map(json.loads, (tmp_path / "log").read_text().splitlines()):
        a, b = before.pop(line["name"]).double(), after[line["name"]].double()
        assert line["first"] == line["second"] == f"F32 {list(a.shape)}"
        assert line["largest"] == (b - a).abs().max().item()
        # Both are sums of squares in double, in another order.
        expected = ((b - a).norm() / a.norm()).item()
        assert abs(line["relative_l2"] - expected) <= a.numel() * 2**-52 * expected
    assert not before
    assert "model.norm.weight" in said and "lm_head.weight" in said and "q_proj" not in said
    assert said.endswith(f"{len(after)} tensors, {len(after) - 2} of equal values; config.json: differs in rms_norm_eps\n")
    assert done("compare", tiny, tiny).endswith(f"{len(after)} of equal values; config.json: equal\n")


def test_compare_shows_what_one_model_has_alone(tiny, large):
    said = done("compare", tiny, large)
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
    assert rows["lm_head.weight"][0] == "F32" and rows["lm_head.weight"][-3:] == ["-", "-", "-"]
    assert rows["model.norm.weight"] == ["F32", "[48]", "F32", "[256]", "-", "-"]


@pytest.fixture(scope="module")
def large(tiny, tmp_path_factory):
    """A llama of zeros, in a file with holes, that takes a while to write."""
    folder = tmp_path_factory.mktemp("large")
    config = json.loads((tiny / "config.json").read_text())
    config.update(vocab_size=1 << 18, hidden_size=256, num_hidden_layers=1, tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {
        "model.embed_tokens.weight": (1 << 18, 256),
        "model.norm.weight": (256,),
        **{f"model.layers.0.{name}_layernorm.weight": (256,) for name in ("input", "post_attention")},
        **{f"model.layers.0.self_attn.{name}_proj.weight": rows for name, rows in
           {"q": (96, 256), "k": (32, 256), "v": (32, 256), "o": (256, 96)}.items()},
        **{f"model.layers.0.mlp.{name}_proj.weight": rows for name, rows in
           {"gate": (80, 256), "up": (80, 256), "down": (256, 80)}.items()},
    }  # fmt: skip
    header, offset = {}, 0
    for name, shape in sizes.items():
        bytes_of = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + bytes_of]}
        offset += bytes_of
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(folder / "model.safetensors", 8 + len(text) + offset)
    return folder


def test_an_interrupted_convert_leaves_nothing(large, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    _, error, code = interrupted(["convert", "--model", large, "--out", out, "--dtype", "bf16"], partial.exists)
    assert (code, error) == (130, "plimsoll: convert: interrupted, nothing is written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def adapter_of_large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = {prefix + "A.weight": torch.ones(4, 256), prefix + "B.weight": torch.ones(96, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_interrupted_merge_leaves_nothing(large, adapter_of_large, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    _, error, code = interrupted(["merge", "--model", large, "--adapter", adapter_of_large, "--out", out], partial.exists)
    assert (code, error) == (130, "plimsoll: merge: interrupted, nothing is written\n")
    assert list(tmp_path.iterdir()) == []
    done("merge", "--model", large, "--adapter", adapter_of_large, "--out", out)


@pytest.mark.parametrize("words", [["info"], ["inspect", "{tiny}"], ["logprobs", "--model", "{tiny}", "--data", "{text}"]])
def test_output_that_cannot_be_written_is_an_error(words, tiny, text):
    command = [PROGRAM, *(word.format(tiny=tiny, text=text) for word in words)]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "plimsoll: output: cannot write\n")


def test_what_a_killed_convert_left_is_removed_by_the_next(tiny, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "model.safetensors").write_text("half")
    (tmp_path / "out.lock").write_text("process 1")
    done("convert", "--model", tiny, "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_convert_says_that_there_is_no_tokenizer(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").unlink()
    result = plimsoll("convert", "--model", tmp_path / "run", "--out", tmp_path / "out")
    expected = f"plimsoll: warning: {tmp_path}/run has no tokenizer.json, and so {tmp_path}/out has none\n"
    assert (result.returncode, result.stderr) == (0, expected)


def test_the_tokens_of_the_log_have_the_spaces_that_they_add(tiny, tmp_path):
    """A tokenizer of words, whose decoder leaves out the space that begins a text."""
    model, log = tmp_path / "model", tmp_path / "log"
    shutil.copytree(tiny, model)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    pieces = ["\u2581", "d", "e", "f", *(f"\u2581w{number}" for number in range(4, size))]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    parts = {"normalizer": None, "pre_tokenizer": space, "post_processor": None, "decoder": space}
    words = {"type": "BPE", "vocab": {piece: number for number, piece in enumerate(pieces)}, "merges": []}
    (model / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": words}))
    (model / "tokenizer_config.json").write_text("{}")
    done("generate", "--model", model, "--prompt", "def", "--tokens", 12, "--temperature", 1, "--json", log)
    *tokens, text = map(json.loads, log.read_text().splitlines())
    assert text["text"].count(" ") > 3 and "".join(token["text"] for token in tokens) == text["text"]


def test_an_interrupted_text_ends_its_line_and_its_log(tiny, tmp_path):
    log = tmp_path / "log"
    words = ["generate", "--model", tiny, "--prompt", "def ", "--tokens", 10**8, "--json", log]
    output, error, code = interrupted(words, lambda: log.exists() and log.read_text().count("\n") > 5)
    assert (code, error) == (130, "") and output.startswith("def ") and output.endswith("\n")
    *tokens, last = map(json.loads, log.read_text().splitlines())
    assert last == {"text": output[4:-1], "tokens": len(tokens), "end": "interrupted"}


def test_a_tokenizer_for_more_tokens_than_the_model_has_is_refused_at_once(tiny, text, tmp_path):
    shutil.copytree(tiny, tmp_path / "larger")
    file = tmp_path / "larger" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = json.loads((tiny / "config.json").read_text())["vocab_size"]
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    free = max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])) + 1
    names = [f"<image {number}>" for number in range(free, vocabulary + 1)]
    for special, code in ((True, 0), (False, 1)):  # Gemma 3 has such a special token
        more = [{"id": free + i, "content": name, "special": special, **flags} for i, name in enumerate(names)]
        file.write_text(json.dumps({**tokenizer, "added_tokens": tokenizer["added_tokens"] + more}))
        result = plimsoll("generate", "--model", tmp_path / "larger", "--prompt", "def ", "--tokens", 2)
        assert result.returncode == code, result.stderr
        if special:
            result = plimsoll("generate", "--model", tmp_path / "larger", "--prompt", "an " + names[-1])
            assert (result.returncode, result.stdout) == (2, "")
            assert f"--prompt: expected tokens of the model's {vocabulary}, got '{names[-1]}', which is none" in result.stderr
    assert result.stdout == ""
    expected = f"expected a tokenizer for the {vocabulary} tokens of the model, got one of {vocabulary + 1}\n"
    assert result.stderr.endswith(expected)
    result = plimsoll("train", "--model", tmp_path / "larger", "--data", text, "--out", tmp_path / "out")
    assert result.stderr.endswith(expected) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["train", "--model", "{tiny}", "--config-of", "{tiny}", "--out", "{out}"], 2, "--config-of: expected no --model"),
        (["train", "--model", "{tiny}", "--layers", "3", "--out", "{out}"], 2, "--layers, --dim, --heads: expected none"),
        (["train", "--model", "{tiny}", "--context", "999", "--out", "{out}"], 2, "--context: expected at most the 256 tokens"),
        (["convert", "--model", "{tiny}", "--out", "{out}", "--dtype", "fp8"], 2, "--dtype: expected stored, fp32, bf16 or fp16"),
        (["convert", "--model", "{tiny}", "--out", "{tiny}"], 2, "expected a free name"),
        (["generate", "--model", "{tiny}", "--adapter", "{tiny}"], 1, "adapter_config.json"),
        (["merge", "--model", "{tiny}", "--adapter", "{run}", "--out", "{out}"], 1, "adapter_config.json"),
        (
            ["train", "--model", "/nope", "--out", "{out}"],
            2,
            "--model: expected tiny, small, gpt2 or a Hugging Face directory, got",
        ),
        (["train", "--model", "{tiny}", "--context", "32", "--out", "{out}", "--json", "/proc/x"], 1, "/proc/x: cannot create"),
        (["train", "--model", "{tiny}", "--context", "32", "--out", "/proc"], 1, "/proc: cannot write there: "),
        (["convert", "--model", "{tiny}", "--out", "/nope/out"], 1, "/nope/out: cannot write there: No such file or directory"),
        (
            ["generate", "--model", "{run}", "--dtype", "bf16"],
            2,
            "--dtype bf16: expected a Hugging Face directory, which plimsoll convert",
        ),
        (["generate", "--model", "{tiny}", "--prompt", "a", "b"], 2, "generate: unexpected argument 'b'"),
        (
            ["generate", "--model", "{tiny}", "--prompt", "x\n" * 999],
            2,
            "--prompt: expected at most the 256 tokens that the model",
        ),
        (["generate", "--model", "{tiny}", "--prompt", b"\xff"], 2, "--prompt: tokenizer: expected a text in UTF-8, got"),
        (
            ["parity", "--model", "{run}", "--data", "{text}"],
            2,
            "--model: expected a Hugging Face directory, which plimsoll convert",
        ),
        (
            ["parity", "--model", "{tiny}", "--data", "{text}", "--context", "99999"],
            2,
            "--context: expected at most the 256 tokens",
        ),
    ],
)
def test_mistakes_are_named(words, code, expected, tiny, run, text, tmp_path):
    places = {"tiny": tiny, "run": run, "text": text, "out": tmp_path / "out"}
    words = [word if isinstance(word, bytes) else word.format(**places) for word in words]
    result = plimsoll(*words, *(["--data", text] if words[0] == "train" else []))
    assert result.returncode == code and expected in result.stderr and result.stderr.count("\n") == 1, result
    assert words[0] == "train" or result.stdout == ""
    assert not (tmp_path / "out").exists()
