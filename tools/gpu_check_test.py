"""gpu_check without a card: what is missing is one line."""

import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).with_name("gpu_check")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, check=False)


def test_a_folder_without_a_build_is_named(tmp_path: pathlib.Path) -> None:
    result = run(str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"gpu_check: expected bin/ptx_test in {tmp_path}; make CUDA=ON build makes it\n"


def test_a_machine_without_a_card_is_named(tmp_path: pathlib.Path) -> None:
    import torch

    for name in ("bin/ptx_test", "ptx/norm.ptx", "lib/libplimsoll_python.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if torch.cuda.is_available():
        return
    result = run(str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "gpu_check: expected a card that torch sees, found none\n"
    assert not (tmp_path / "gpu.json").exists()
