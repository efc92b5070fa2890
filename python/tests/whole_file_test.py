"""Files of Python that several processes write, or that one is killed at."""

import os
import signal
import subprocess
import sys

import pytest
from plimsoll import _whole_file
from plimsoll._whole_file import whole_file, write_text

WRITER = """
import sys
sys.path[:0] = [{folder!r}]  # the module by itself: the package takes seconds to import
from _whole_file import whole_file
with whole_file({target!r}) as name, open(name, "w") as file:
    for _ in range(100):
        file.write({letter!r} * 10_000)
        file.flush()
    {then}
"""


def start(target, letter, then="pass"):
    code = WRITER.format(folder=os.path.dirname(_whole_file.__file__), target=str(target), letter=letter, then=then)
    return subprocess.Popen([sys.executable, "-c", code])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_of_two_processes_that_write_one_file_each_writes_a_whole_one(tmp_path):
    target = tmp_path / "report.html"
    for _ in range(20):
        writers = [start(target, letter) for letter in "xy"]
        assert [writer.wait(timeout=300) for writer in writers] == [0, 0]
        text = target.read_text()
        assert text == text[0] * 1_000_000
        assert names(tmp_path) == ["report.html"]


def test_what_a_killed_writer_left_goes_and_what_a_live_one_writes_stays(tmp_path):
    target = tmp_path / "a"
    killed = start(target, "x", then="import os; os.kill(os.getpid(), 9)")
    assert killed.wait(timeout=300) == -signal.SIGKILL
    assert len(names(tmp_path)) == 1 and names(tmp_path)[0].startswith("a.")
    with whole_file(target) as live:
        live.write_text("live")
        write_text(target, "other")
        assert names(tmp_path) == ["a", live.name]
    assert target.read_text() == "live" and names(tmp_path) == ["a"]


def test_an_error_leaves_the_old_file(tmp_path):
    target = tmp_path / "a"
    write_text(target, "old")
    with pytest.raises(RuntimeError), whole_file(target) as name:
        name.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old" and names(tmp_path) == ["a"]


def test_a_device_is_never_replaced_and_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match="/dev/null: expected a regular file"):
        write_text("/dev/null", "x")
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/none/a'"):
        write_text(tmp_path / "none" / "a", "x")
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")
