"""Options that the model at hand has no use for are refused, numbers beyond all limits say the limit, and Ctrl-C says what is left."""

import pytest
import tiny_llama
from gauge_program import PROGRAM
from program import interrupted, plimsoll, refused
from t5_command import new_model

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    for name in ("t5", "llama"):
        (root / name).mkdir()
    new_model(root / "t5")
    tiny_llama.write(root / "llama")
    (root / "text").write_text("The sea is wide.\n" * 20)
    return root


PARITY = ["parity", "--data", "text", "--model"]
GAUGE = ["gauge", "--out", "out", "--model"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*PARITY, "llama", "--fixes", "seed"], "--fixes: expected a T5, got llama"),
        ([*PARITY, "llama", "--batch", "8"], "--batch: expected a T5, got llama"),
        ([*PARITY, "llama", "--max-new-tokens", "3"], "--max-new-tokens: expected a T5, got llama"),
        ([*PARITY, "t5", "--context", "3"], "--context: expected a model other than T5, got t5"),
        ([*PARITY, "t5", "--tokens", "3"], "--tokens: expected a model other than T5, got t5"),
        ([*PARITY, "t5", "--max-ppl", "3"], "--max-ppl: expected a model other than T5, got t5"),
        ([*PARITY, "t5", "--inject", "0,0,4"], "--inject: expected a model other than T5, got t5"),
        ([*GAUGE, "llama", "--measurements", "3"], "gauge: expected --calibrate beside --measurements"),
        ([*GAUGE, "t5", "--measurements", "3"], "--measurements: expected a decoder-only model, got t5"),
        ([*GAUGE, "llama", "--max-new-tokens", "3"], "--max-new-tokens: expected a T5, got llama"),
        ([*GAUGE, "llama", "--batch", "3"], "--batch: expected a T5, got llama"),
        (
            [*PARITY, "llama", "--tokens", "99999999999999999999"],
            "--tokens: expected an integer from 2 to 9223372036854775807, got '99999999999999999999'",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(words, expected, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert refused(*words) == f"plimsoll: {expected}\n"
    assert not (folder / "out").exists()


@pytest.mark.parametrize("model", ["llama", "t5"])
def test_an_interrupted_parity_leaves_nothing(model, folder, tmp_path):
    audit = tmp_path / "audit"
    words = ["parity", "--model", folder / model, "--data", folder / "text", "--json", tmp_path / "json", "--audit", audit]
    assert interrupted(words, audit.exists) == ("", "plimsoll: parity: interrupted, nothing is written\n", 130)
    assert list(tmp_path.iterdir()) == []


def test_a_preset_with_the_name_of_a_folder_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", folder / "text", "--model", "small", "--steps", 1, "--layers", 1, "--dim", 32, "--heads", 2]
    words += ["--context", 16, "--batch", 1, "--eval-windows", 1, "--threads", 1]
    assert plimsoll(*words, "--out", "without").stderr == ""
    (tmp_path / "small").mkdir()
    said = "plimsoll: warning: the model is the preset small, not the folder of this name, which is --model ./small\n"
    assert plimsoll(*words, "--out", "with").stderr == said
