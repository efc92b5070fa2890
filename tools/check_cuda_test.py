"""check_cuda on small logs: what is pinned passes, each kind of violation is named."""

import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).with_name("check_cuda")
LOG = """Cuda compilation tools, release 13.0, V13.0.88
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'copy' for 'sm_80'
ptxas info    : Function properties for copy
    {stack} bytes stack frame, {stores} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""
PINS = '{"nvcc": "13.0", "registers": {"copy": {"sm_80": 20}}}'


def run(
    root: pathlib.Path, *options: str, pins: str = PINS, stack: int = 0, stores: int = 0, registers: int = 20
) -> subprocess.CompletedProcess[str]:
    (root / "pins.json").write_text(pins)
    (root / "copy.log").write_text(LOG.format(stack=stack, stores=stores, registers=registers))
    command = [sys.executable, str(TOOL), *options, str(root / "pins.json"), str(root / "copy.log")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_pinned_passes(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path)
    assert (result.returncode, result.stdout) == (0, "cuda: ok (1 kernels, 1 architectures)\n")


def test_other_registers_are_named(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, registers=21)
    assert result.returncode == 1
    assert "copy, sm_80: expected 20 registers, got 21 registers" in result.stdout


def test_stack_and_spills_are_named_whatever_nvcc_it_was(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, pins=PINS.replace("13.0", "12.9"), stack=16, stores=8, registers=21)
    assert result.returncode == 1
    assert "copy, sm_80: expected no stack, got 16 bytes" in result.stdout
    assert "copy, sm_80: expected no spills, got 8 bytes" in result.stdout
    assert "got 21 registers" not in result.stdout
    assert "registers are pinned for nvcc 12.9, not 13.0" in result.stdout


def test_a_kernel_without_a_pin_and_a_pin_without_a_kernel_are_named(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, pins=PINS.replace("copy", "move"))
    assert result.returncode == 1
    assert "copy, sm_80: expected a pin, got 20 registers" in result.stdout
    assert "move: expected a kernel, got a pin alone" in result.stdout


def test_update_writes_the_pins(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, "--update", registers=24).returncode == 0
    assert run(tmp_path, pins=(tmp_path / "pins.json").read_text(), registers=24).returncode == 0


def test_update_keeps_the_pins_of_an_architecture_without_a_log(tmp_path: pathlib.Path) -> None:
    pins = PINS.replace('"sm_80": 20', '"sm_80": 20, "sm_120": 18')
    result = run(tmp_path, "--update", pins=pins, registers=24)
    assert result.returncode == 1
    assert "expected logs of all pinned architectures (CUDA=ON has them), none of ['sm_120']" in result.stderr
    assert (tmp_path / "pins.json").read_text() == pins


def test_without_logs_it_says_that_it_is_skipped(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(TOOL), str(tmp_path / "pins.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (77, "check_cuda: skipped, no nvcc was found\n")


def test_a_log_without_kernels_fails(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pins.json").write_text(PINS)
    (tmp_path / "a.log").write_text("release 13.0, V13.0.88\n")
    command = [sys.executable, str(TOOL), str(tmp_path / "pins.json"), str(tmp_path / "a.log")]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 1


def run_with_sources(root: pathlib.Path, listed: str, read: str | None) -> subprocess.CompletedProcess[str]:
    clone = TOOL.parent.parent
    (root / "sources.txt").write_text(listed)
    if read is not None:
        (root / "copy.cubin.d").write_text(f"copy.ptx : {clone}/{read} \\\n    {clone}/plimsoll/b.cuh \\\n    /usr/include/c.h\n")
    return run(root, "--sources", str(root / "sources.txt"))


def test_a_source_that_nvcc_read_and_the_hash_lacks_is_named(tmp_path: pathlib.Path) -> None:
    listed = "plimsoll/a.cu\nplimsoll/b.cuh\nplimsoll/launched.h\n"
    assert run_with_sources(tmp_path, listed, "plimsoll/a.cu").returncode == 0
    result = run_with_sources(tmp_path, listed, "plimsoll/other.cu")
    assert result.returncode == 1
    assert result.stdout.startswith("plimsoll/other.cu: expected every file that nvcc reads in ")


def test_logs_without_lists_of_what_nvcc_read_fail(tmp_path: pathlib.Path) -> None:
    result = run_with_sources(tmp_path, "plimsoll/a.cu\n", None)
    assert result.returncode == 1
    assert "expected nvcc's lists of what it read beside the logs, found none" in result.stdout
