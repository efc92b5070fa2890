"""docs/autoscale_rules.md is what the rule table says, and names tests that exist."""

from pathlib import Path

from plimsoll.autoscale import rules_page

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_page_is_that_of_the_rule_table():
    assert (ROOT / "docs" / "autoscale_rules.md").read_text() == rules_page.page()


def test_each_class_names_a_test_that_exists():
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("autoscale*_test.py"))
    for _, test in rules_page.CLASSES.values():
        assert f"def {test}(" in tests
