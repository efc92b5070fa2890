"""A rank that is killed or stopped in any phase of a step: the others say so in time, and the run goes on as if nothing had been."""

import json
import pathlib
import subprocess
import sys

import launched_ranks
import pytest
import shard_faults

WORKER = pathlib.Path(__file__).with_name("shard_faults.py")
NAMES = ["-".join(map(str, case)) for case in shard_faults.CASES]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    command = [sys.executable, WORKER, tmp_path_factory.mktemp("faults")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=900, env=launched_ranks.environment())
    assert said.returncode == 0, said.stderr[-4000:]
    return json.loads(said.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_the_others_say_who_is_gone_in_time_and_the_run_goes_on(results, name):
    signal, phase, victim = name.split("-")
    found = results[name]
    assert sorted(found["codes"]) == [-9, 1, 1], found
    for error in found["errors"]:
        assert f"rank {victim}" in error["error"], error
        # Beside the deadline a minute for what the other worker's tests take of the processors; of a kill the ranks learn at once.
        assert error["seconds"] < (60 if signal == "KILL" else shard_faults.DEADLINES[signal] + 60), error
    assert found["resumed"] == [0, 0, 0]
    steps, weights = found["outcome"]
    # A process that is killed while it writes may have written.
    assert steps in ((2, 3) if phase == "writing" else (2,))
    assert weights == results["whole"]
