"""plimsoll gauge measures: its exponents against uniform ones, on inputs that it has not seen."""

import math
from typing import Any

import decoder_models
import grafted_decoders
import pytest
from gauge_program import PROGRAM, gauge, write_ids

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

UNIFORM = (0, -3, -6, -9)
HEADROOM = (0, 3)  # bits
TEXTS, TOKENS = 32, 64


def inputs(seed):
    return decoder_models.tokens(TEXTS, TOKENS, seed)


def fp16_error(folder, ids, expected):
    """Relative L2 distance of our FP16 logits; infinite where they are not finite."""
    logits = decoder_models.load(folder, "fp16").forward(ids, None)
    return ((logits - expected).norm() / expected.norm()).item() if logits.isfinite().all() else math.inf


class Case:
    """A grafted model of a family, its texts, and the errors of exponents: (on the calibration's texts, on others)."""

    def __init__(self, name, root):
        self.root, self.calibration, self.held_out = root, inputs(1), inputs(2)
        self.source = grafted_decoders.make(name, self.calibration)
        self.folder = decoder_models.save(self.source, root / "model")
        self.file = write_ids(root / "in.jsonl", *({"input_ids": row.tolist()} for row in self.calibration))
        model = decoder_models.load(self.folder)
        self.expected = [(ids, model.forward(ids, None)) for ids in (self.calibration, self.held_out)]

    def errors(self, folder):
        return [fp16_error(folder, ids, expected) for ids, expected in self.expected]

    def gauged(self, headroom):
        out = self.root / f"gauged {headroom}"
        certificate = gauge(self.folder, out, "--calibrate", self.file, "--headroom-bits", headroom)
        assert certificate["below_headroom"] == [] and certificate["fp16"]["finite"]
        return self.errors(out), certificate

    def uniform(self):
        """By what it is, each uniform exponent's bits of headroom and errors."""
        found = {}
        for residual in UNIFORM:
            for what, model in grafted_decoders.uniform(self.source, residual):
                headroom = grafted_decoders.headroom_bits(model, self.calibration)
                folder = decoder_models.save(model, self.root / f"{what} {residual}")
                found[f"{residual} {what}"] = (headroom, self.errors(folder))
        return found


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """By headroom and family: errors, those of the best uniform exponents that leave as much, and the certificate."""
    rows: dict[int, dict[str, Any]] = {headroom: {} for headroom in HEADROOM}
    for name in grafted_decoders.MODELS:
        case = Case(name, tmp_path_factory.mktemp(name))
        uniform = case.uniform()
        for headroom in HEADROOM:
            errors, certificate = case.gauged(headroom)
            fits = {what: found for what, (bits, found) in uniform.items() if bits >= headroom}
            best = [min(fits.items(), key=lambda each: each[1][i]) for i in (0, 1)]
            rows[headroom][name] = (errors, [best[0][1][0], best[1][1][1]], certificate)
            search = certificate["search"]
            print(
                f"{name}, {headroom} bits: {errors[0]:.3e} seen, {errors[1]:.3e} held out; by amaxes alone "
                f"{search['by_amaxes_relative_l2']:.3e}; best uniform {best[0][1][0]:.3e} ({best[0][0]}), {best[1][1][1]:.3e} "
                f"({best[1][0]}); ratio {errors[1] / best[1][1][1]:.3f}; {search['measurements']} measured; "
                f"lost {max(weight['lost_bits'] for weight in certificate['weights']):.2f} bits"
            )
    return rows


@pytest.mark.parametrize("headroom", HEADROOM)
def test_exponents_are_no_worse_than_uniform_ones_on_inputs_not_seen(headroom, table):
    ratios = [errors[1] / best[1] for errors, best, _ in table[headroom].values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{headroom} bits: mean ratio {mean:.3f}, largest {max(ratios):.3f}")
    assert mean <= 1 and max(ratios) <= 1.2
