"""Commands that take a Hugging Face directory: of a run, or a place without one, they say what is wrong and name plimsoll convert."""

import pytest
from finetune_runs import QUICK, save_chats, save_model, words_of
from gauge_program import PROGRAM
from program import done, refused

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A model, what finetune --full has written, and a text."""
    root = tmp_path_factory.mktemp("places")
    (root / "model").mkdir()
    (root / "empty").mkdir()
    save_model(root / "model")
    (root / "text").write_text("The sea is wide and the ship is small.\n" * 40)
    full = ["--full", "--steps=1", "--batch=1", "--context=32", *QUICK]
    done(*words_of(root / "model", save_chats(root), "--out", root / "tuned", *full))
    assert (root / "tuned" / "model.safetensors").exists()
    return root


COMMANDS = [
    (["generate", "--model", "{}", "--prompt", "a", "--dtype", "fp16"], "--dtype fp16"),
    (["parity", "--model", "{}", "--data", "text"], "--model"),
    (["parity", "--model", "model", "--against", "{}", "--data", "text"], "--against"),
    (["quantize", "--model", "{}", "--format", "nvfp4", "--out", "out"], "--model"),
    (["line", "--model", "{}", "--data", "text", "--out", "out"], "--model"),
]


@pytest.mark.parametrize(("words", "option"), COMMANDS)
def test_a_run_is_refused_with_the_command_that_makes_a_directory_of_it(words, option, places, monkeypatch):
    monkeypatch.chdir(places)
    said = refused(*(word.format("tuned") for word in words))
    start = f"plimsoll: {option}: expected a Hugging Face directory, which plimsoll convert makes of a run, got the run tuned"
    assert said.startswith(start)
    assert not (places / "out").exists()


@pytest.mark.parametrize(("words", "option"), COMMANDS[1:])
def test_a_place_that_is_no_directory_of_a_model_is_named(words, option, places, monkeypatch):
    monkeypatch.chdir(places)
    expected = f"plimsoll: {option}: expected a Hugging Face directory, got "
    assert refused(*(word.format("empty") for word in words)) == f"{expected}empty without config.json\n"
    assert refused(*(word.format("text") for word in words)) == f"{expected}text, which is no directory\n"


def test_convert_refuses_a_run_of_bytes_before_it_reads_a_weight(places):
    run = places / "bytes"
    words = ["--data", places / "text", "--out", run, "--steps=1", "--batch=1", "--threads=1", "--context=16"]
    done("train", "--model", "tiny", *words)
    (weights,) = run.glob("step-*/model.safetensors")
    weights.write_bytes(b"")
    said = refused("convert", "--model", run, "--out", places / "out")
    assert said.startswith(f"plimsoll: {run}: expected a run that began with a Hugging Face directory, got one of a new model")
    assert not (places / "out").exists()
