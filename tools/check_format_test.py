"""check_format on a small project: what is in order passes, each kind of fault is named."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATTER = shutil.which("clang-format", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("clang-format")
HEADER = "// Sum of two numbers. The line in the middle of a sentence begins\n// Where it likes.\nint sum(int a, int b);\n"
MODULE = '"""A module."""\n\n# Numbers of the ranks.\nRANKS = (0, 1)\n'

pytestmark = pytest.mark.skipif(FORMATTER is None, reason="clang-format is not installed")


def run(root: pathlib.Path, header: str = HEADER, module: str = MODULE, name: str = "a.h") -> subprocess.CompletedProcess[str]:
    for folder in ("bench", "cmake", "examples", "plimsoll", "python", "tests", "tools", ".venv/bin"):
        (root / folder).mkdir(parents=True)
    for copied in (".clang-format", "tools/check_format"):
        shutil.copy(ROOT / copied, root / copied)
    (root / ".venv" / "bin" / "clang-format").symlink_to(str(FORMATTER))
    (root / "plimsoll" / name).write_text(header)
    (root / "python" / "a.py").write_text(module)
    return subprocess.run([str(root / "tools" / "check_format")], capture_output=True, text=True, check=False)


def test_sources_in_order_pass(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path)
    assert (result.returncode, result.stdout) == (0, "format: ok (1 files)\n"), result.stdout + result.stderr


@pytest.mark.parametrize("name", ["a.h", "a.inc"])
def test_another_layout_is_named(tmp_path: pathlib.Path, name: str) -> None:
    result = run(tmp_path, header="int sum( int a,int b );\n", name=name)
    assert result.returncode == 1
    assert f"plimsoll/{name}:1" in result.stderr


@pytest.mark.parametrize("word", ["How", "Its", "Of", "Them", "They", "Those", "What", "Where", "Which", "Who", "Whose", "Why"])
def test_a_first_word_that_is_no_subject_is_named(tmp_path: pathlib.Path, word: str) -> None:
    header = f"// A sentence.\n//\n// {word} it is.\nint sum(int a, int b);\n"
    result = run(tmp_path, header, f'"""A module."""\n\n\ndef f():\n    """{word} it is."""\n    # {word} it is.\n')
    assert result.returncode == 1
    said = [line.partition(": ")[0] for line in result.stdout.splitlines()[:-1]]
    assert said == ["plimsoll/a.h:3", "python/a.py:5", "python/a.py:6"], result.stdout
