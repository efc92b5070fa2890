"""check_docs on small trees: what is there passes, each kind of fault is named with its page and line."""

import json
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).with_name("check_docs")
PROGRAM = """#!/bin/sh
case "$1" in
  train) echo "  --steps N   steps" ;;
  *) printf 'Subcommands:\\n  train   Train a model\\n' ;;
esac
"""


HEADER = """// A count.
//
//   {
//     const kernels::Count count(numbers);  // of which there may be any...
//     for (int number : numbers) ...
//   }
//   ... more ...
#include <vector>
namespace plimsoll::kernels {
struct Count {
  explicit Count(const std::vector<int>& numbers);
};
}  // namespace plimsoll::kernels
"""
CONTEXT = "#include <vector>\nnamespace plimsoll::header_examples { extern std::vector<int> numbers; }\n"


def run(root: pathlib.Path, page: str, header: str = HEADER) -> subprocess.CompletedProcess[str]:
    """A project whose program has the command train and whose Makefile has the target demo."""
    (root / "Makefile").write_text("demo: program ## show it\ngpu-check: ## on a card\n")
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text(page)
    (root / "docs" / "other.md").write_text("# Other\n\n## What it's for: `train`\n")
    (root / "plimsoll" / "kernels").mkdir(parents=True)
    (root / "plimsoll" / "kernels" / "count.h").write_text(header)
    (root / "tools").mkdir()
    (root / "tools" / "header_examples.h").write_text(CONTEXT)
    program = root / "build" / "bin" / "plimsoll"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    package = root / "python" / "plimsoll"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def report(): ...\n")
    command = "ccache /usr/bin/c++ -std=c++20 -DNAME=torch_pch -o a.o -c examples/a.cpp"
    (root / "build" / "compile_commands.json").write_text(json.dumps([{"command": command}]))
    return subprocess.run([sys.executable, CHECK, root / "build", root], capture_output=True, text=True, check=False)


GOOD = """# Page

[a file](other.md), [a heading](other.md#what-its-for-train), [one of this page](#page), [elsewhere](https://example.org/x).
`plimsoll train --steps 3 | tee --append log`, `plimsoll --version`, `make demo`, `make gpu-check` and `[no link](none.md)`.

    plimsoll train \\
      --steps 3    # --other
    make demo

```python
from plimsoll import report
undefined(report)
```
```python run
import plimsoll

print(plimsoll.report())
```
```cpp
int main() { a fragment }
```
```cpp
#include <vector>
std::vector<int> counts;
```
"""


def test_what_is_there_passes(tmp_path: pathlib.Path) -> None:
    result = run(tmp_path, GOOD)
    assert (result.stdout, result.returncode) == ("docs: ok (2 pages)\n", 0)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("\n[a](none.md)", "docs/page.md:2: none.md: expected a file, found none"),
        (
            "[a](other.md#none)",
            "docs/page.md:1: other.md#none: expected a heading of other.md, which has other, what-its-for-train",
        ),
        ("[a](#none)", "docs/page.md:1: #none: expected a heading of page.md"),
        ("a `plimsoll trian`", "docs/page.md:1: plimsoll trian: expected one of report, train"),
        ("a `plimsoll train --stops 3`", "docs/page.md:1: plimsoll train --stops: the command has no such option"),
        ("a\n\n    build/bin/plimsoll train --stops=3\n", "docs/page.md:3: plimsoll train --stops: the command has no such"),
        (
            "a\n\n    plimsoll train \\\n      --stops=3\n",
            "docs/page.md:3: plimsoll train --stops: the command has no such option",
        ),
        ("```\nplimsoll train \\\n  --stops=3\n```\n", "docs/page.md:2: plimsoll train --stops: the command has no such option"),
        ("run `make demos`", "docs/page.md:1: make demos: the Makefile has no such target"),
        ("run `make gpu-chek`", "docs/page.md:1: make gpu-chek: the Makefile has no such target"),
        ("```python\nif x\n```\n", "docs/page.md:2: ```python: line 1: expected ':'"),
        (
            "```python\nfrom plimsoll import rapport\n```\n",
            "docs/page.md:2: ```python: ImportError: cannot import name 'rapport'",
        ),
        ("```python run\nundefined()\n```\n", "docs/page.md:2: ```python run: NameError: name 'undefined' is not defined"),
        (
            "```cpp\n#include <vector>\nstd::vektor<int> x;\n```\n",
            "docs/page.md:2: ```cpp: 2:6: error: 'vektor' in namespace 'std'",
        ),
    ],
)
def test_each_fault_is_named(tmp_path: pathlib.Path, page: str, fault: str) -> None:
    result = run(tmp_path, page)
    assert result.returncode == 1
    assert fault in result.stdout.replace("‘", "'").replace("’", "'")
    assert result.stdout.endswith("docs: 1 faults\n")


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (HEADER.replace("Count count", "Cuont count"), "plimsoll/kernels/count.h:4:"),
        (HEADER.replace("(int number :", "(int number ;"), "plimsoll/kernels/count.h:5:"),
    ],
)
def test_an_example_in_a_header_that_does_not_compile_is_named(tmp_path: pathlib.Path, header: str, fault: str) -> None:
    result = run(tmp_path, GOOD, header)
    assert result.returncode == 1
    assert fault in result.stdout.replace("‘", "'").replace("’", "'")
