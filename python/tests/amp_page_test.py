"""docs/amp.md: what it says of the names of torch.amp and Apex is so."""

import inspect
import re
from pathlib import Path
from typing import Any

import plimsoll.amp
import plimsoll.optim
import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "amp.md"
# Apex, which is not installed: what its users call, and the arguments.
APEX = {
    "amp.initialize": """models optimizers enabled opt_level cast_model_type patch_torch_functions keep_batchnorm_fp32 master_weights
        loss_scale cast_model_outputs num_losses verbosity min_loss_scale max_loss_scale""",
    "amp": "scale_loss master_params state_dict load_state_dict half_function float_function promote_function disable_casts",
    "amp.scale_loss": "loss_id delay_unscale delay_overflow_check",
    "amp_C": "update_scale_hysteresis",
    "optimizers": "FusedAdam FusedSGD FusedLAMB",
    "fp16_utils": "FP16_Optimizer",
}
CLASSES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")


def table(heading):
    """{the peer's name: (here, what differs)}"""
    section = PAGE.read_text().split("## Names of torch.amp and Apex\n")[1].split("\n## ")[0]
    lines = section.split(f"| {heading} | here | what differs |\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert len({row[0] for row in rows}) == len(rows)
    return {name.strip("`"): (here.strip("`"), differs) for name, here, differs in rows}


def parameters(of: Any) -> dict[str, inspect.Parameter]:
    function = vars(of)["__init__"] if isinstance(of, type) else of
    return {name: each for name, each in inspect.signature(function).parameters.items() if name not in ("self", "kwargs")}


def find(name):
    """A name of plimsoll.amp, or a whole path; behind it a method or an argument."""
    whole, _, last = name.rpartition(".")
    for path in (name, whole):
        found: Any = plimsoll if path.startswith("plimsoll.") else plimsoll.amp
        for part in path.removeprefix("plimsoll.").split("."):
            found = getattr(found, part, None)
        if found is not None:
            return path == name or (callable(found) and last in parameters(found))
    return False


def names_of_torch_amp():
    """torch.amp lists them in 2.13; in 2.11 the two files do that it imports them from."""
    files: Any = (torch.amp.autocast_mode, torch.amp.grad_scaler)
    imported = [name for file in files for name in file.__all__ if hasattr(torch.amp, name)]
    return set(getattr(torch.amp, "__all__", imported))


def test_each_name_of_torch_amp_is_here_unless_the_table_says_none():
    rows = table("torch.amp's name")
    assert {name for name in names_of_torch_amp() if not hasattr(plimsoll.amp, name)} == {
        name for name, (here, _) in rows.items() if here == "none"
    }
    methods = {name for name in dir(torch.amp.GradScaler) if not name.startswith("_")}
    assert methods <= set(dir(plimsoll.amp.GradScaler))


@pytest.mark.parametrize("kind", CLASSES)
def test_each_argument_is_here_in_its_place_with_its_default(kind):
    rows = table("torch.amp's name")
    ours, theirs = (parameters(getattr(module, kind)) for module in (plimsoll.amp, torch.amp))
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, their in theirs.items():
        assert ours[name].kind is their.kind
        assert ours[name].default == their.default or f"{kind}.{name}" in rows, name


def test_the_table_names_each_argument_that_a_method_of_the_scaler_has_beside_torchs():
    rows = table("torch.amp's name")
    more = {}
    for name in (name for name in dir(torch.amp.GradScaler) if not name.startswith("_")):
        ours, theirs = (parameters(getattr(module.GradScaler, name)) for module in (plimsoll.amp, torch.amp))
        if added := ours.keys() - theirs.keys():
            more[f"GradScaler.{name}"] = added
    assert more, "there are some"
    for name, added in more.items():
        assert all(f"also `{each}`" in rows[name][1] for each in added), name


def test_the_table_is_of_names_that_torch_has():
    for name, (here, _) in table("torch.amp's name").items():
        assert here in ("the same", "none"), name
        kind, _, part = name.partition(".")
        theirs = getattr(torch.amp, kind)
        assert not part or hasattr(theirs, part) or part in parameters(theirs), name


def test_states_are_torchs_but_for_what_the_table_adds():
    added = re.findall(r"also (.*);", table("torch.amp's name")["GradScaler.state_dict"][1])[0]
    theirs = torch.amp.GradScaler("cpu").state_dict().keys()
    assert plimsoll.amp.GradScaler("cpu").state_dict().keys() == theirs
    assert plimsoll.amp.GradScaler("cpu", hysteresis=2).state_dict().keys() - theirs == set(re.findall("`(.*?)`", added))


def test_each_name_of_apex_has_a_row_and_what_stands_there_is_here():
    rows = table("Apex's name")
    names = {f"{path}.{name}" for path, each in APEX.items() for name in each.split()}
    assert rows.keys() == names
    for name, (here, _) in rows.items():
        assert here == "none" or find(here), name


def test_a_name_that_nobody_has_is_noticed():
    assert find("GradScaler.step") and find("GradScaler.hysteresis") and find("plimsoll.optim.AdamW")
    assert not any(find(name) for name in ("GradScaler.no_such", "no_such", "plimsoll.optim.no_such", "GradScaler.step.no_such"))
