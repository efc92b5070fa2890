"""The attacks' own judgement: what they call a failure, what they write, and damage that is damage."""

import itertools
import json
import random
import sys

import commands
import common
import damage
import files
import kills
import pytest
import run


def outcome_of(script, limit=300.0):
    return common.run_program(["bash", "-c", script], limit)


@pytest.mark.parametrize(
    "script, what",
    [
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("sleep 600", "did not end in"),
        ("sleep 600 & echo held; wait", "did not end in"),
        ("exit 4", "exit code 4"),
        ("echo 'Traceback (most recent call last)' >&2; exit 1", "a stack trace"),
        ("seq 9 >&2; exit 1", "9 lines on stderr"),
        ("exit 1", "without a word"),
    ],
)
def test_a_bad_end_is_a_complaint(script, what):
    assert what in common.complaint(outcome_of(script, limit=1.0 if "sleep" in script else 300.0))


@pytest.mark.parametrize("script", ["exit 0", "echo no >&2; exit 1", "echo no >&2; exit 2", "echo diverged >&2; exit 3"])
def test_a_good_end_is_none(script):
    assert common.complaint(outcome_of(script)) is None


def finished(tmp_path, count, failures):
    file = tmp_path / "result.json"
    attack = common.Attack("calls", ["--seconds", "5", "--seed", "3", "--json", str(file)], name="example")
    attack.count = count
    for text in failures:
        attack.fail(text)
    return attack.finish(), json.loads(file.read_text())


def test_an_attack_without_failures_passes(tmp_path, capsys):
    code, result = finished(tmp_path, 7, [])
    assert code == 0
    assert (result["attack"], result["what"], result["count"], result["failures"]) == ("example", "calls", 7, [])
    assert capsys.readouterr().out == "example: 7 calls, 0 failures\n"


def test_an_attack_with_failures_fails_and_counts_all(tmp_path):
    code, result = finished(tmp_path, 7, ["x"] * (common.KEPT_FAILURES + 2))
    assert code == 1
    assert len(result["failures"]) == common.KEPT_FAILURES + 1 and result["failures"][-1] == "and 2 more"


def test_an_attack_that_did_nothing_fails(tmp_path):
    code, result = finished(tmp_path, 0, [])
    assert code == 1 and len(result["failures"]) == 1


def test_an_attack_ends_at_its_count_and_at_its_deadline():
    attack = common.Attack("calls", ["--seconds", "600"], name="example")
    attack.count = 9
    assert attack.goes_on(10) and not attack.goes_on(9)
    late = common.Attack("calls", ["--seconds", "0"], name="example")
    assert not late.goes_on(10)


def struck_saves(tmp_path, monkeypatch, save, ranks=1):
    """Failures of kills that strike `save` in place of a saver."""
    monkeypatch.setattr(kills, "save_forever", save)
    monkeypatch.setattr(kills, "wrong_checkpoint", lambda run: None)
    monkeypatch.setattr(kills, "LIMIT", 5)
    attack = common.Attack("kills", ["--seconds", "600"], name="example")
    kills.strike_saves(attack, tmp_path, "saves", [1], 10, 2, ranks)
    return attack.failures


def saves_forever(run, steps, elements, rank, *_):
    for name in itertools.cycle(["step-00000001", "step-00000001.partial"]):
        (run / name).mkdir(parents=True, exist_ok=True)
        (run / name / "manifest.json").write_text("{}")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_that_throws_is_a_failure_with_its_trace(tmp_path, monkeypatch, ranks):
    def save(run, steps, elements, rank, *_):
        if rank == ranks - 1:
            raise RuntimeError("disk full")
        saves_forever(run, steps, elements, rank)

    failures = struck_saves(tmp_path, monkeypatch, save, ranks)
    assert len(failures) == 1 and "RuntimeError: disk full" in failures[0]


def test_saves_that_are_killed_are_no_failure(tmp_path, monkeypatch):
    assert struck_saves(tmp_path, monkeypatch, saves_forever) == []


def test_a_library_program_that_cannot_start_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BUILD", tmp_path)
    library = files.Library(common.Attack("files", ["--seconds", "5"], name="example"), 0, 10)
    library.run()
    assert library.done == 0 and len(library.failures) == 1 and "attack_files" in library.failures[0]


def test_a_library_program_that_read_nothing_is_a_failure():
    library = files.Library(common.Attack("files", ["--seconds", "0"], name="example"), 0, 10)
    library.run()
    assert library.failures == ["expected one file or more to be read within the time, got none"]


def test_shares_shrink_only_where_there_is_too_little_time():
    assert run.shares({"a": 4, "b": 1}, 1200) == {"a": 240, "b": 60}
    assert run.shares({"a": 4, "b": 1}, 30) == {"a": 30, "b": 7.5}
    assert run.shares({"a": 1, "b": 1, "c": 2}, 60) == {"a": 30, "b": 30, "c": 60}
    assert run.shares({"a": 1}, 30) == {"a": 30}


def test_the_driver_finds_the_attacks_and_not_what_they_share():
    assert not {"common", "damage", "run", "attack_common_test"} & set(run.attacks())


@pytest.mark.parametrize("body, failure", [("sys.exit(3)", "without a result"), ("os.kill(os.getpid(), 11)", "without a result")])
def test_an_attack_that_dies_is_a_failure(tmp_path, monkeypatch, body, failure):
    (tmp_path / "dies.py").write_text(f"import os, sys\n{body}\n")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    assert failure in run.run_attack("dies", 5.0, 1)["failures"][0]


def test_the_page_shows_what_failed():
    report = {"date": "2026-01-02", "commit": "abc", "cpu": "C", "isa": "I", "threads": "2", "seed": 1}
    report["attacks"] = [{"attack": "a", "what": "calls", "count": 5, "failures": ["broke\nhere"], "seconds": 1.0}]
    text = run.page(report)
    assert "| a | calls | 5 | 1 | 1.0 |" in text and "    broke\n    here\n" in text


def test_damage_changes_bytes_and_leaves_json_json():
    generator = random.Random(1)
    data = bytes(range(200))
    document = {"a": [1, 2, {"b": "c"}], "d": None}
    before = json.dumps(document)
    changed = [damage.damage_bytes(generator, data) != data for _ in range(200)]
    texts = {json.dumps(damage.damage_json(generator, document)) for _ in range(200)}
    assert sum(changed) > 150 and len(texts) > 150
    assert json.dumps(document) == before


def test_random_numbers_come_from_the_seed():
    first, second = (common.Attack("x", ["--seed", "5"], name="x").random.random() for _ in range(2))
    assert first == second
    assert sys.path  # the modules above were found beside this file


def test_every_command_has_a_case_or_reads_no_file():
    if not common.PROGRAM.is_file():
        pytest.skip(f"expected the program {common.PROGRAM}, found none")
    assert commands.commands_of_help() == set(commands.CASES) | commands.NO_FILES
