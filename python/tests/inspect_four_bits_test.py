"""`plimsoll inspect` on matrices of values, whose codes it makes to say what they lose, and on matrices that are codes."""

import json

import coded_files
import pytest
import torch
from program import done, plimsoll
from safetensors.torch import load_file, save_file

FORMATS = {"nvfp4": (coded_files.nvfp4, 16), "mxfp4": (coded_files.mxfp4, 32)}


def inspected(path, tmp_path):
    """Reports by name, and the text."""
    text = done("inspect", path, "--json", tmp_path / "log")
    return {report["name"]: report for report in map(json.loads, (tmp_path / "log").read_text().splitlines())}, text


def blocks_of(values, size):
    return values.unflatten(1, (-1, size))


def share(condition):
    return condition.double().mean().item()


@pytest.mark.parametrize("name", FORMATS)
def test_codes_in_a_file_are_read_as_their_values(name, tmp_path):
    encode, size = FORMATS[name]
    model = coded_files.make("llama")
    with torch.no_grad():
        for _, parameter in model.model.layers.named_parameters():
            if parameter.dim() == 2:
                parameter[0, :32] = 0
    directory = coded_files.write(model, tmp_path / "codes", name)
    reports, text = inspected(directory, tmp_path)
    state, stored = model.state_dict(), load_file(directory / "model.safetensors")
    assert reports.keys() == stored.keys()
    packed = [each for each in stored if each.endswith(".weight_packed")]
    assert len(packed) == 14  # seven matrices in each of two layers
    for each in packed:
        report, values = reports[each], state[each.removesuffix("_packed")].double()
        assert report["dtype"] == name.upper() and report["shape"] == list(values.shape)
        # The factor of NVFP4, which divides, is inverted in FP32.
        assert report["amax"] == pytest.approx(values.abs().max().item(), rel=2**-23, abs=0)
        assert report["rms"] == pytest.approx(values.square().mean().sqrt().item(), rel=2**-23, abs=0)
        assert report["zeros"] == share(values == 0)
        shares = report["four_bits"].pop(name)
        assert list(report["four_bits"].values()) == [None]
        assert shares["flushed"] == share(values == 0)
        assert shares["flushed_blocks"] == share((blocks_of(values, size) == 0).all(-1)) > 0
        magnitudes = coded_files.unpack(stored[each]).abs()
        assert shares["saturated"] == share((magnitudes == 6) & (values != 0))
    line = next(line for line in text.splitlines() if line.startswith(packed[0]))
    assert line.split()[1] == name.upper()
    assert "four bits" in text and "blocks of zeros" in text


@pytest.mark.parametrize("layout", ["tensor", "channel", "fp8"])
def test_fp8_codes_are_read_as_their_values_and_scales_are_no_matrices(layout, tmp_path):
    model = coded_files.make("llama")
    directory = coded_files.write(model, tmp_path / "codes", layout)
    reports, text = inspected(directory, tmp_path)
    state, stored = model.state_dict(), load_file(directory / "model.safetensors")
    assert reports.keys() == stored.keys()
    coded = [each for each in stored if stored[each].dtype == coded_files.E4M3]
    assert len(coded) == 14
    for each in coded:
        report, values = reports[each], state[each].double()
        assert report["dtype"] == "FP8" and report["shape"] == list(values.shape)
        assert report["amax"] == values.abs().max().item()
        assert report["rms"] == pytest.approx(values.square().mean().sqrt().item(), rel=2**-40, abs=0)
        assert report["zeros"] == share(values == 0)
        assert report["four_bits"] == {"nvfp4": None, "mxfp4": None}
    scales = [each for each in stored if "weight_scale" in each]
    assert len(scales) == 14 and all(reports[each]["four_bits"] == {"nvfp4": None, "mxfp4": None} for each in scales)
    assert "1 matrix as codes" in text  # the embedding, which the head is


def test_damaged_scales_are_no_values(tmp_path):
    made, _ = coded_files.nvfp4(torch.randn(8, 32))
    for name, bad in (("zero", 0.0), ("inf", float("inf")), ("negative", -1.0)):
        tensors = {f"x.{last}": part.contiguous() for last, part in made.items()}
        tensors["x.weight_global_scale"] = torch.tensor([bad])
        save_file(tensors, tmp_path / name)
        result = plimsoll("inspect", tmp_path / name)
        assert result.returncode == 3, result
        assert result.stderr.startswith("plimsoll: inspect: expected finite values, got Inf or NaN in x.weight_"), result
        row = next(line for line in result.stdout.splitlines() if line.startswith("x.weight_packed")).split()
        assert row[1] == "NVFP4" and "nan" in row and "100.00%" in row, row


def test_values_that_are_not_finite_are_the_exit_code(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.tensor([1, float("inf")]), "c": torch.tensor(float("nan"))}, tmp_path / "file")
    result = plimsoll("inspect", tmp_path / "file", "--json", tmp_path / "log")
    assert (result.returncode, result.stderr) == (
        3,
        "plimsoll: inspect: expected finite values, got Inf or NaN in b and 1 more\n",
    )
    assert len((tmp_path / "log").read_text().splitlines()) == 3 and "3 tensors" in result.stdout


def test_a_model_of_values_shows_what_codes_would_lose(tmp_path):
    torch.manual_seed(1)
    matrix = torch.randn(24, 96) * torch.logspace(-6, 2, 24)[:, None]
    matrix[3] = 0
    save_file({"w": matrix, "b": torch.ones(5)}, tmp_path / "model.safetensors")
    reports, text = inspected(tmp_path / "model.safetensors", tmp_path)
    for name, (encode, size) in FORMATS.items():
        rows = matrix[matrix.abs().amax(1) > 0]  # a block of zeros has no logarithm
        stored, values = encode(rows)
        values = values.nan_to_num(0.0)  # what is divided by a scale of zero
        shares = reports["w"]["four_bits"][name]
        assert shares["flushed"] == share(values == 0)
        assert shares["flushed_blocks"] == share((blocks_of(values, size) == 0).all(-1))
        if name == "nvfp4":
            # Three roundings to FP32 lead to a scaled value, each by 2^-24 at the most.
            largest = 6 * stored["weight_scale"].double() / stored["weight_global_scale"].double() * (1 + 2**-22)
            beyond = (blocks_of(rows, size).abs() > largest[..., None]) & (largest[..., None] > 0)
            assert shares["saturated"] == share(beyond) > 0
        else:
            assert shares["saturated"] == 0
    assert reports["w"]["four_bits"]["nvfp4"]["flushed_blocks"] > 0 == reports["w"]["four_bits"]["mxfp4"]["flushed_blocks"]
    assert reports["b"]["four_bits"] == {"nvfp4": None, "mxfp4": None}
    assert "1 matrix as codes" in text
