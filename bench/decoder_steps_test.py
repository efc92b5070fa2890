"""Commands that decoder_train.py and finetune.py run, and what they refuse."""

import decoder_steps
import decoder_train
import finetune
import pytest


def arguments(monkeypatch, module, *words):
    monkeypatch.setattr("sys.argv", ["program", *words])
    names = (*module.THEIRS, *module.OURS)
    return decoder_steps.parse(decoder_steps.parser_of("", names), names)


@pytest.mark.parametrize("module", [decoder_train, finetune])
def test_each_contestant_runs_its_own_options_on_the_same_shape(monkeypatch, module):
    monkeypatch.setattr("generate_checkpoint.vocabulary_of", lambda model: 99)
    args = arguments(monkeypatch, module, "--context=8", "--batch=2", "--threads=1", "--build=here")
    shape = ["--context=8", "--batch=2", "--threads=1", "--model=somewhere"]
    for name in args.contestants:
        runner = decoder_steps.runner(name, "somewhere", args, module.THEIRS, module.OURS, restart=True)
        assert runner.name == name
        assert runner.command[-4:] == shape
        if name in module.THEIRS:
            script, *options = module.THEIRS[name]
            assert runner.command[1].is_file() and runner.command[1].name == script
            assert runner.command[2:-4] == options
        else:
            assert str(runner.command[0]) == "here/bin/gpt_step_worker"
            assert runner.command[1:-4] == [*module.OURS[name], "--vocabulary=99"]


def test_an_unknown_contestant_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        arguments(monkeypatch, decoder_train, "--contestants=bf16,fp99")
    assert "got fp99" in capsys.readouterr().err
