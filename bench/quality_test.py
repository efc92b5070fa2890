"""bench/quality.py with a `plimsoll` that writes given differences instead of training."""

import json
import pathlib
import subprocess
import sys

QUALITY = pathlib.Path(__file__).parent / "quality.py"


def quality(directory, by_seed):
    """by_seed: the difference of fp8 from fp32 in percent, for each seed."""
    program = directory / "bin" / "plimsoll"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "option = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
        f"difference = {json.dumps(by_seed)}[int(option('--seed')) - 1]\n"
        "out = pathlib.Path(option('--out'))\n"
        "out.mkdir(parents=True)\n"
        "runs = [{'recipe': 'fp32', 'difference_percent': 0.0}, {'recipe': 'fp8', 'difference_percent': float(difference)}]\n"
        "(out / 'compare.json').write_text(json.dumps({'results': runs}))\n"
    )
    program.chmod(0o755)
    seeds = ",".join(str(1 + i) for i in range(len(by_seed)))
    command = [sys.executable, QUALITY, "--data", directory, "--build", directory, "--out", directory / "out"]
    command += ["--recipes", "fp32,fp8", "--seeds", seeds]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_within_the_limits_is_good(tmp_path):
    result = quality(tmp_path, [0.4, -0.4, 0.9])
    assert (result.returncode, "+0.30%" in result.stdout) == (0, True)


def test_the_mean_is_held_on_both_sides(tmp_path):
    for name, differences in (("above", [0.6, 0.6, 0.6]), ("below", [-0.6, -0.6, -0.6])):
        (tmp_path / name).mkdir()
        assert quality(tmp_path / name, differences).returncode == 1


def test_one_seed_is_held_on_both_sides(tmp_path):
    for name, differences in (("above", [1.1, 0.0, 0.0]), ("below", [-1.1, 0.0, 0.0]), ("no number", [float("nan"), 0.0])):
        (tmp_path / name).mkdir()
        result = quality(tmp_path / name, [repr(one) for one in differences])
        assert (result.returncode, "beyond the limit" in result.stdout) == (1, True)
