"""plimsoll gauge --train: FP16 fine-tuning of a model with outliers, without loss scaling where the certificate says so."""

import json
import shutil

import finetune_runs
import grafted_decoders
import pytest
import torch
from finetune_runs import logged, losses, save_chats, save_model
from gauge_program import PROGRAM, gauge, write_ids
from program import done, plimsoll
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

STEPS = 60
MOST_APART = 0.005  # share of FP32's losses
TARGETS = 48  # a step of the run has 41 in the mean
LARGE = 1e5  # outliers beyond FP16's largest number, with norms whose weights FP16 holds
# The default rate of --full. Grafts and gauge make some weights 2^20 times smaller: under 1e-4 FP16 and FP32 part.
RUN = ["--full", "--context=128", "--batch=1", f"--steps={STEPS}", "--lr=2e-5", "--threads=1", "--samples=0", "--log-scales=0"]


class Gauged:
    """A small Llama with outliers, gauged for steps of so many targets; chats to train on."""

    def __init__(self, root, targets):
        self.root, self.source, self.out = root, root / "model", root / "gauged"
        self.source.mkdir()
        save_model(self.source)
        self.data = save_chats(root)
        tokenizer = AutoTokenizer.from_pretrained(self.source)
        chats = [json.loads(line)["messages"] for line in self.data.read_text().splitlines()]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats[:20]]
        rows = [tokenizer(text, add_special_tokens=False)["input_ids"][:128] for text in texts]
        model = AutoModelForCausalLM.from_pretrained(self.source)
        ids = torch.tensor([row[:32] for row in rows if len(row) >= 32])
        with torch.no_grad():
            for part in ("stream", "hidden", "key"):
                grafted_decoders.GRAFTS[part](model, ids, LARGE)
        model.save_pretrained(self.source)
        file = write_ids(root / "in.jsonl", *({"input_ids": row} for row in rows))
        self.certificate = gauge(self.source, self.out, "--calibrate", file, "--train", "--step-targets", targets)

    def finetune(self, model, recipe):
        """(losses, what the run said)."""
        out = self.root / f"{model.name} {recipe}"
        said = done(*finetune_runs.words_of(model, self.data, "--out", out, f"--recipe={recipe}", *RUN))
        return losses(out), said, logged(out)


@pytest.fixture(scope="module")
def small_steps(tmp_path_factory):
    return Gauged(tmp_path_factory.mktemp("small"), TARGETS)


def test_fp16_trains_without_a_loss_scale_where_the_certificate_needs_none(small_steps):
    train = small_steps.certificate["train"]
    assert train["targets_a_step"] == TARGETS and train["loss_scale"] == 1
    assert small_steps.certificate["search"]["of"] == ["logits", "gradients"]
    assert min(gradient["headroom_bits"] for gradient in train["gradients"]) >= 3
    expected, *_ = small_steps.finetune(small_steps.out, "fp32")
    found, said, lines = small_steps.finetune(small_steps.out, "fp16")
    assert "loss scale none, by the certificate of the model" in said
    assert not any("loss_scale" in line for line in lines) and len(found) == STEPS
    first, last = sum(expected[:10]) / 10, sum(expected[-10:]) / 10
    assert last < (1 - 4 * MOST_APART) * first  # the losses move more than they may differ
    apart = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
    print(f"losses {expected[0]:.4f} to {expected[-1]:.4f}, apart {apart:.2%}; {small_steps.certificate['search']}")
    print(
        {key: train[key] for key in ("loss_scale", "gradients_relative_l2", "loss_scales")}, small_steps.certificate["exponents"]
    )
    assert apart < MOST_APART


def test_the_source_does_not_train_in_fp16(small_steps):
    out = small_steps.root / "source fp16"
    words = finetune_runs.words_of(small_steps.source, small_steps.data, "--out", out, "--recipe=fp16", *RUN, "--steps=2")
    plimsoll(*words)
    assert not all(isinstance(loss, float) and loss == loss for loss in losses(out))


def test_a_large_step_leaves_a_loss_scale_which_a_run_takes(tmp_path):
    gauged = Gauged(tmp_path, 2**24)
    train = gauged.certificate["train"]
    errors = {trial["loss_scale"]: trial["gradients_relative_l2"] for trial in train["loss_scales"]}
    assert train["loss_scale"] > 1 and errors[1] > 1.25 * errors[train["loss_scale"]]
    print(train["loss_scale"], errors)
    # So few targets a step that nothing is left of it.
    _, said, _ = gauged.finetune(gauged.out, "fp16")
    assert "loss scale none, by the certificate" in said
    certificate = gauged.out / "plimsoll_gauge.json"
    all_of_it = json.loads(certificate.read_text())

    def say(**train):
        certificate.write_text(json.dumps({**all_of_it, "train": train}))

    say(loss_scale=64, most_loss_scale=1e6, targets_a_step=1)
    words = finetune_runs.words_of(gauged.out, gauged.data, "--out", tmp_path / "scaled", "--recipe=fp16", *RUN, "--steps=1")
    assert "loss scale 4096, by the certificate" in done(*words)
    say(loss_scale=None)
    said = done(*words[:-1], "--steps=1", "--out", tmp_path / "dynamic")
    assert "loss scale dynamic: by the certificate of the model gradients overflow under each that gauge tried" in said
    say(loss_scale="all")
    refused = plimsoll(*words[:-1], "--steps=1", "--out", tmp_path / "refused")
    assert refused.returncode == 1 and "expected train.loss_scale, most_loss_scale and targets_a_step" in refused.stderr


@pytest.mark.parametrize(("loss_scale", "targets", "before", "after"), [(64, 1, "4096", "8192"), (1, 48, "none", "2")])
def test_a_run_goes_on_with_another_batch_and_its_loss_scale(small_steps, tmp_path, loss_scale, targets, before, after):
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(small_steps.out, model)
    train = {"loss_scale": loss_scale, "most_loss_scale": 1e6, "targets_a_step": targets}
    (model / "plimsoll_gauge.json").write_text(json.dumps({**small_steps.certificate, "train": train}))
    words = [*finetune_runs.words_of(model, small_steps.data, "--out", out, "--recipe=fp16", *RUN)]
    assert f"loss scale {before}, by the certificate" in done(*words, "--steps=2")
    result = plimsoll(*words, "--steps=4", "--batch=2", "--resume")
    assert result.returncode == 0, result.stderr
    assert f"loss scale {after}, by the certificate" in result.stdout
    assert f'the loss scale was "{before}", from here on it is "{after}", for as many tokens' in result.stderr
    scales = [line.get("loss_scale", "none") for line in logged(out) if "loss" in line]
    assert [str(scale).removesuffix(".0") for scale in scales] == [before, before, after, after]
    same = plimsoll(*words, "--steps=5", "--batch=2", "--resume")
    assert same.returncode == 0 and "the loss scale was" not in same.stderr
    typed = plimsoll(*words, "--steps=6", "--batch=2", "--resume", "--loss-scale=32")
    assert typed.returncode == 2 and f'expected a run with loss_scale "32", got "{after}"' in typed.stderr


@pytest.mark.parametrize("content", ["1.5", "{}"])
def test_a_file_that_is_no_certificate_is_refused(small_steps, tmp_path, content):
    model = tmp_path / "model"
    shutil.copytree(small_steps.out, model)
    (model / "plimsoll_gauge.json").write_text(content)
    words = finetune_runs.words_of(model, small_steps.data, "--recipe=fp16", *RUN)
    assert "expected a certificate of plimsoll gauge" in finetune_runs.refusal(tmp_path, *words)


def test_a_certificate_of_other_weights_is_refused(small_steps, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(small_steps.source, model)
    shutil.copy(small_steps.out / "plimsoll_gauge.json", model)
    words = finetune_runs.words_of(model, small_steps.data, "--recipe=fp16", *RUN, "--steps=1")
    first = next(weight for weight in small_steps.certificate["weights"] if weight["exponent"] != 0)
    line = finetune_runs.refusal(tmp_path, *words)
    assert f"the largest of {first['name']} is " in line and f"in place of {first['amax']:.6g}; gauge the model anew" in line
    # A loss scale that is typed, another recipe and adapters need no certificate.
    done(*words, "--out", tmp_path / "bf16", "--recipe=bf16")
    assert "certificate" not in plimsoll(*words, "--out", tmp_path / "typed", "--loss-scale=dynamic").stderr
    # A directory rounded to BF16 has the amaxes of its certificate but for that.
    rounded = tmp_path / "rounded"
    done("convert", "--model", small_steps.out, "--out", rounded, "--dtype", "bf16")
    shutil.copy(small_steps.out / "plimsoll_gauge.json", rounded)
    words = finetune_runs.words_of(rounded, small_steps.data, "--recipe=fp16", *RUN, "--steps=1")
    assert "loss scale none, by the certificate" in done(*words, "--out", tmp_path / "of_bf16")


@pytest.mark.parametrize(("arguments", "expected"), [(["--train"], "expected --calibrate FILE")])
def test_mistakes_are_one_line(arguments, expected, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    refused = plimsoll("gauge", "--model", save_model(model), "--out", tmp_path / "out", *arguments)
    assert refused.returncode == 2 and expected in refused.stderr and refused.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
