"""examples/amp: each runs, and reaches what it promises."""

import pathlib
import runpy
import sys

import pytest
import torch

EXAMPLES = sorted(
    path for path in (pathlib.Path(__file__).resolve().parents[2] / "examples" / "amp").glob("*.py") if path.stem != "problem"
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, "problem", raising=False)  # which says how many threads, as it is imported
    monkeypatch.setattr(sys, "argv", [str(path)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    assert "loss" in capsys.readouterr().out


def test_each_is_there_in_both_languages():
    assert EXAMPLES and all(path.with_suffix(".cpp").is_file() for path in EXAMPLES)
