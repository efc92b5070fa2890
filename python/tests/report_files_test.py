"""--json FILE and --audit FILE: a report takes the place of an earlier one, of nothing else."""

import json
from typing import Any

import finetune_runs
import pytest
import tokenizer_texts
from program import done, plimsoll
from served import serving

ONE_STEP = "--steps 1 --batch 1 --context 16 --threads 1".split()
TRAIN = ["train", "--layers", 1, "--dim", 16, "--heads", 2, "--eval-windows", 1, "--warmup", 1, "--data", "{text}", "--out"]
COMMANDS: dict[str, list[Any]] = {
    "train": [*TRAIN, "{new}", *ONE_STEP],
    "finetune": ["finetune", "--model", "{model}", "--data", "{chats}", "--out", "{new}", *ONE_STEP, "--samples", 0],
    "show-data": ["finetune", "--model", "{model}", "--data", "{chats}", "--show-data", 1],
    "generate": ["generate", "--model", "{model}", "--prompt", "a", "--tokens", 2],
    "generate nothing": ["generate", "--model", "{model}", "--prompt", "a", "--tokens", 0],
    "logprobs": ["logprobs", "--model", "{model}", "--data", "{text}", "--tokens", 20],
    "audit": ["audit", "--model", "{model}", "--as", "generate"],
    "inspect": ["inspect", "{model}"],
    "compare": ["compare", "{model}", "{model}"],
    "parity": ["parity", "--model", "{model}", "--data", "{text}", "--tokens", 20],
    "quantize": ["quantize", "--model", "{model}", "--out", "{new}", "--format", "fp8"],
    "shard-plan": ["shard-plan", "--model", "tiny", "--tokens-per-second", 300, "--bandwidth", 10],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "model").mkdir()
    (folder / "text.txt").write_text(tokenizer_texts.python_source()[:4000])
    model, chats = finetune_runs.save_model(folder / "model"), finetune_runs.save_chats(folder)
    return {"{model}": model, "{text}": folder / "text.txt", "{chats}": chats}


def words_of(name, places, new):
    return [{**places, "{new}": new}.get(word, word) for word in COMMANDS[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_report_takes_the_place_of_an_earlier_one(name, places, tmp_path):
    report = tmp_path / "report"
    for time in range(2):
        done(*words_of(name, places, tmp_path / f"new{time}"), "--json", report)
        assert report.read_text().startswith("{")
    before = report.read_bytes()
    done("inspect", places["{model}"], "--json", report)  # and of another command's
    assert report.read_bytes() != before or name == "inspect"


@pytest.mark.parametrize("option", ["--json", "--audit"])
def test_no_other_file_is_replaced(option, places, tmp_path):
    (tmp_path / "notes").write_text("a\n")
    others = [places["{model}"] / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
    for other in (*others, places["{chats}"], places["{text}"], tmp_path / "notes"):
        before = other.read_bytes()
        result = plimsoll(*words_of("generate", places, None), option, other)
        expected = f"plimsoll: {option}: expected a new file or an earlier report, got {other}, which is neither\n"
        assert (result.returncode, result.stdout, result.stderr) == (2, "", expected)
        assert other.read_bytes() == before
    (tmp_path / "empty").touch()
    for free in (tmp_path / "empty", tmp_path / "empty", "/dev/null"):
        done(*words_of("generate", places, None), option, free)


def test_a_configuration_file_is_refused_in_the_same_way(places, tmp_path):
    (tmp_path / "notes").write_text("a\n")
    (tmp_path / "config").write_text(json.dumps({"json": str(tmp_path / "notes")}))
    result = plimsoll(*words_of("train", places, tmp_path / "new"), "--config", tmp_path / "config")
    assert result.returncode == 2 and "expected a new file or an earlier report" in result.stderr, result
    assert (tmp_path / "notes").read_text() == "a\n" and not (tmp_path / "new").exists()


def test_a_server_goes_on_with_the_place_of_its_log(places, tmp_path):
    for _ in range(2):
        with serving(places["{model}"], "--json", tmp_path / "log") as server:
            server.client.completions.create(model="any", prompt="a", max_tokens=1)
            assert server.stop() == 0
        assert json.loads((tmp_path / "log").read_text().splitlines()[0])["status"] == 200
