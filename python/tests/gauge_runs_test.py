"""plimsoll gauge of runs of a Hugging Face model: their newest checkpoint becomes a directory with the certificate."""

import json

import pytest
from finetune_runs import QUICK, save_chats, save_model, words_of
from gauge_program import PROGRAM, gauge
from program import done
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

TRAIN = ["--steps=2", "--batch=1", "--context=32", "--lr=1e-3", *QUICK]


def runs(tmp_path):
    """A run of train, one of finetune --full, and a checkpoint of the first."""
    model = tmp_path / "model"
    model.mkdir()
    save_model(model)
    chats, text = save_chats(tmp_path), tmp_path / "text"
    text.write_text("The sea is wide and the ship is small.\n" * 400)
    done(*["train", "--model", model, "--data", text, "--out", tmp_path / "run", *TRAIN[:-1]])
    done(*words_of(model, chats, "--full", "--out", tmp_path / "tuned", *TRAIN))
    return model, chats, [tmp_path / "run", tmp_path / "tuned", next((tmp_path / "run").glob("step-*2"))]


def test_a_run_of_a_hugging_face_model_becomes_a_gauged_directory(tmp_path):
    model, chats, sources = runs(tmp_path)
    for number, source in enumerate(sources):
        out = tmp_path / f"gauged{number}"
        certificate = gauge(source, out, "--calibrate", chats, "--measurements", 2)
        assert certificate["fp32"]["bit_identical"] and certificate["fp16"]["finite"]
        assert certificate["calibration"]["inputs"] >= 90
        assert {"model.safetensors", "tokenizer.json", "config.json"} <= {path.name for path in out.iterdir()}
        converted = tmp_path / f"converted{number}"
        done("convert", "--model", source, "--out", converted)
        found, expected = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (out, converted))
        trained = AutoModelForCausalLM.from_pretrained(model).state_dict()
        assert certificate["exponents"]["residual"] == 0  # nothing overflows, so that no weight moves
        assert all(found[name].equal(weight) for name, weight in expected.items())
        assert not all(found[name].equal(weight) for name, weight in trained.items())
    # Without inputs, too: the worst case of a vocabulary beyond 256.
    assert "worst case" in json.dumps(gauge(sources[0], tmp_path / "worst")["calibration"])
