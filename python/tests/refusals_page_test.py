"""docs/python.md lists every argument and name of Transformer Engine that is refused, and none that is not."""

import ast
import importlib
import re
from pathlib import Path

from plimsoll.pytorch import left_out

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "python/plimsoll/pytorch").glob("*.py"))
HEADING = "## What is refused"


def tables_of(source):
    """The module's tables {argument: the one value that is accepted}."""
    module = importlib.import_module(f"plimsoll.pytorch.{source.stem}")
    return [value for name, value in vars(module).items() if re.fullmatch(r"(\w+_)?(ONLY|UB)", name)]


def named_in_errors(source):
    """Names after "expected" in what raises NotImplementedError."""
    raised = [ast.unparse(node) for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Raise)]
    errors = [text for text in raised if text.startswith("raise NotImplementedError(")]
    return {name for text in errors for name in re.findall(r"expected (?:no )?([a-z]+_\w+|device)", text)}


def refused_in_code():
    names = {name for source in SOURCES for table in tables_of(source) for name in table}
    names |= {name for source in SOURCES for name in named_in_errors(source)}
    return names | {
        name for name, value in vars(left_out).items() if getattr(value, "__doc__", None) and "Left out" in value.__doc__
    }


def listed_in_page():
    page = (ROOT / "docs/python.md").read_text()
    section = page.split(HEADING)[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_page_lists_what_the_code_refuses():
    code, page = refused_in_code(), listed_in_page()
    assert len(code) > 20
    assert code == page, f"not on the page: {sorted(code - page)}; not in the code: {sorted(page - code)}"
