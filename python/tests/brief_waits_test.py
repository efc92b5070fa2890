"""Threads of the program, which wait briefly for each other unless the user says how long."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from program import PROGRAM, command_of

pytestmark = [
    pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built"),
    pytest.mark.skipif("san" in os.environ.get("LD_PRELOAD", ""), reason="a program with a sanitizer begins with that"),
]

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def variables_of(**chosen):
    """The program's values of these, read when its threads work."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    words = command_of("info", "--limits")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**environment, **chosen, "OMP_NUM_THREADS": "2"}) as process:
        folder = Path(f"/proc/{process.pid}")
        while len(os.listdir(folder / "task")) < 2:
            assert process.poll() in (None, 0), process.returncode
            if process.returncode == 0:
                pytest.skip("the program has one thread here")
            time.sleep(0.01)
        pairs = [pair.partition(b"=") for pair in (folder / "environ").read_bytes().split(b"\0")]
        process.kill()
    return {name.decode(): value.decode() for name, _, value in pairs if name.decode() in VARIABLES}


def test_threads_wait_for_a_fifth_of_a_millisecond():
    found = variables_of()
    # Between 10 and 1000 ns for a PAUSE and what is around it.
    assert list(found) == ["GOMP_SPINCOUNT"] and 200 <= int(found["GOMP_SPINCOUNT"]) <= 20_000, found


def test_the_users_choice_stays():
    assert variables_of(OMP_WAIT_POLICY="passive") == {"OMP_WAIT_POLICY": "passive"}
    assert variables_of(GOMP_SPINCOUNT="7") == {"GOMP_SPINCOUNT": "7"}


def test_arguments_stay_as_they_are(tmp_path):
    name = "a name with spaces \udcff and bytes".encode("utf-8", "surrogateescape")
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    result = subprocess.run(
        command_of("inspect", os.fsencode(tmp_path) + b"/" + name), capture_output=True, env=environment, check=False
    )
    assert result.returncode == 2 and b"a name with spaces" in result.stderr, result
