"""plimsoll generate and serve.Engine draw as the directory's generation_config.json says, and as options say instead."""

import json

import pytest
import tiny_llama
from plimsoll.serve import Engine
from program import PROGRAM, done, plimsoll

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")


@pytest.fixture
def text_of(tmp_path):
    """Writes generation_config.json and returns what the command generates."""
    folder = tiny_llama.write(tmp_path)

    def generated(config, *options):
        if config is None:
            (folder / "generation_config.json").unlink(missing_ok=True)
        else:
            (folder / "generation_config.json").write_text(json.dumps(config))
        return done("generate", "--model", folder, "--prompt", "def ", "--tokens", 40, *options)

    return generated


def test_the_likeliest_token_is_taken_where_the_file_draws_none(text_of):
    greedy = text_of({}, "--temperature", 0)
    for config in (None, {}, {"temperature": 0.6, "top_k": 20}, {"do_sample": False}, {"do_sample": None}):
        for seed in (1, 2):
            assert text_of(config, "--seed", seed) == greedy, config


def test_the_files_draws_are_those_of_the_same_options(text_of):
    options = ("--temperature", 1.5, "--top-k", 7, "--top-p", 0.9, "--repetition-penalty", 1.3)
    config = {"do_sample": True, "temperature": 1.5, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.3}
    assert text_of(config) == text_of(None, *options) != text_of(config, "--seed", 2)
    for name, value in config.items():
        without = {key: other for key, other in config.items() if key != name}
        if name != "do_sample":
            assert text_of(config, f"--{name.replace('_', '-')}", value) == text_of({**without, name: value})
            assert text_of(without, f"--{name.replace('_', '-')}", value) == text_of(config)


def test_an_option_of_the_draws_asks_for_draws_with_the_rest_as_transformers_has_it(text_of):
    usual = {"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    for option, value in (("top_k", 5), ("top_p", 0.5), ("temperature", 2.0)):
        assert text_of({}, f"--{option.replace('_', '-')}", value) == text_of({**usual, option: value})
    assert text_of(usual) == text_of({"do_sample": True})
    assert text_of(usual, "--temperature", 0) == text_of({})


def test_min_p_of_the_file_is_kept_to(text_of):
    draws = {"do_sample": True, "temperature": 1.5, "top_k": 0}
    assert text_of({**draws, "min_p": 1}) == text_of({}) != text_of(draws), "of the likeliest token alone"


def test_an_engine_keeps_to_the_files_min_p_where_none_is_given(tmp_path):
    folder = tiny_llama.write(tmp_path, end=None)
    config = {"do_sample": True, "temperature": 1.5, "top_k": 0, "min_p": 1}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with Engine(folder) as engine:

        def ids(**options):
            return [token.id for token in engine.submit([1, 2], max_tokens=20, seed=1, **options)]

        assert ids() == ids(min_p=1) == ids(temperature=0) != ids(min_p=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "expected a JSON object, got array"),
        ({"do_sample": "yes"}, "do_sample: expected true or false"),
        ({"do_sample": True, "temperature": -1}, "expected temperature"),
        ({"do_sample": True, "top_p": 2}, "top_p in [0, 1]"),
        ({"do_sample": True, "min_p": 2}, "min_p in [0, 1]"),
        ({"do_sample": True, "top_k": 1.5}, "top_k: expected an integer"),
        ({"repetition_penalty": 0}, "expected a finite repetition_penalty > 0, got 0"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_one_line_that_names_it(tmp_path, config, message):
    folder = tiny_llama.write(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(config))
    result = plimsoll("generate", "--model", folder, "--prompt", "a")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert "generation_config.json: " in result.stderr and message in result.stderr
