"""The table of docs/t5.md: outliers of every size, in plain FP16, with the answers that people have, and gauged."""

import math
from typing import Any

import pytest
import torch
from gauge_program import gauge, hugging_face, write_ids
from plimsoll.t5 import T5ForConditionalGeneration
from rounding import gamma
from t5_models import inputs, make, relative, save
from t5_outliers import graft

SHAPE = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 1, "num_heads": 6}
AMAXES = [5.6e4, 1.2e5, 3.7e5, 7.5e5, 1.9e6]  # g of 3e3, 6e3, 2e4, 4e4 and 1e5
# Relative error below which an output is the model's: that of another function is about 1, and FP16 rounds these models, which
# magnify it, to some hundredths at most.
RIGHT = 0.1
FITS, SURVIVES_EIGHT = AMAXES[:1], AMAXES[:3]


class Case:
    """Hugging Face's model with outliers, its directory and the gauged one. where: see graft()."""

    def __init__(self, root, amax, seed=7, shape=SHAPE, **where):
        self.theirs = make("v1.1", seed=seed, **shape)
        self.ids, _ = inputs(self.theirs, [64])
        self.decoder_ids = torch.cat([torch.zeros(1, 1, dtype=torch.long), self.ids[:, :20]], 1)
        if where.get("stack") == "decoder":
            where["decoder_ids"] = self.decoder_ids
        self.grafted = graft(self.theirs, self.ids, amax, **where)
        assert self.grafted.reaches(amax)
        self.source, self.gauged = save(self.theirs, root / "model"), root / "gauged"
        line = {"input_ids": self.ids[0].tolist(), "decoder_input_ids": self.decoder_ids[0].tolist()}
        self.certificate = gauge(self.source, self.gauged, "--calibrate", write_ids(root / "in.jsonl", line))
        self.want = self.theirs(input_ids=self.ids, decoder_input_ids=self.decoder_ids)

    def error(self, encode):
        return relative(encode(self.ids), self.want.encoder_last_hidden_state)

    def ours(self, directory, fixes=None):
        """Error of our FP16; NaN if any element is."""
        return self.error(T5ForConditionalGeneration.from_pretrained(directory, torch.float16, fixes).encode)

    def transformers(self, directory):
        encoder = hugging_face(directory).half().encoder
        return self.error(lambda ids: encoder(input_ids=ids).last_hidden_state)


def mean_ratio(pairs):
    return math.exp(sum(math.log(a / b) for a, b in pairs) / len(pairs))


@torch.no_grad()
def test_the_table(tmp_path):
    """The models magnify rounding, by a factor that differs from draw to draw by e^0.5: single errors say little, and the
    mean of five ratios is within a factor of 2."""
    cases = {amax: Case(tmp_path / f"{amax:g}", amax) for amax in AMAXES}
    naive = {amax: case.ours(case.source, {"no_dynamic_clamp": True}) for amax, case in cases.items()}
    clamped = {amax: case.transformers(case.source) for amax, case in cases.items()}
    seed = {amax: case.ours(case.source, "seed") for amax, case in cases.items()}
    gauged = {amax: (case.ours(case.gauged), case.transformers(case.gauged)) for amax, case in cases.items()}
    for amax in AMAXES:
        print(
            f"{amax:.1e} naive {naive[amax]:.1e} clamped {clamped[amax]:.1e} seed {seed[amax]:.1e} gauged {gauged[amax][0]:.1e}, "
            f"transformers {gauged[amax][1]:.1e}, r = {cases[amax].certificate['exponents']['residual']}"
        )
    assert [amax for amax in AMAXES if naive[amax] < RIGHT] == FITS  # NaN compares false
    assert [amax for amax in AMAXES if seed[amax] < RIGHT] == SURVIVES_EIGHT
    assert all(clamped[amax] > gauged[amax][0] for amax in AMAXES[2:]) and clamped[AMAXES[-1]] > 1
    assert all(error < RIGHT for pair in gauged.values() for error in pair)
    assert mean_ratio(gauged.values()) < 2
    assert all(case.certificate["fp32"]["bit_identical"] for case in cases.values())


@pytest.mark.parametrize("amax", [5.6e4, 1.9e6])
@torch.no_grad()
def test_ours_rounds_less_than_transformers(amax, tmp_path):
    """Models with the outlier in the last block magnify nothing, and an error is that of the arithmetic alone."""
    case = Case(tmp_path, amax, shape={**SHAPE, "num_layers": 2}, blocks=(1,))
    ours, theirs = case.ours(case.gauged), case.transformers(case.gauged)
    # A path through a layer has ten results, and the final norm one.
    assert ours < theirs < gamma(2 * 10 + 1, torch.float16)


@torch.no_grad()
def test_the_statistics_of_flan_t5_xl(tmp_path):
    """A standard deviation of 4400 and an amax beyond 1.2e5 in one down-projection."""
    case = Case(tmp_path, 1.3e5, channels=24)
    deviations = [y.std().item() for y in case.grafted.outputs()]
    assert 4400 / 1.3 < max(deviations) < 4400 * 1.3  # a model alike, not the same one
    assert math.isnan(case.ours(case.source, {"no_dynamic_clamp": True}))
    assert case.ours(case.source, "seed") < RIGHT and case.ours(case.gauged) < RIGHT and case.transformers(case.gauged) < RIGHT


@torch.no_grad()
def test_outliers_of_the_decoder(tmp_path):
    """The seed's residual_fp32 is the encoder's; gauge does not tell the stacks apart."""
    case = Case(tmp_path, 1.9e6, shape={**SHAPE, "num_layers": 3, "num_decoder_layers": 3}, stack="decoder", blocks=(1,))
    decoder_ids = case.decoder_ids

    def logits(directory, fixes):
        ours = T5ForConditionalGeneration.from_pretrained(directory, torch.float16, fixes)
        return ours(input_ids=case.ids, decoder_input_ids=decoder_ids).logits

    assert not logits(case.source, {"no_dynamic_clamp": True}).isfinite().all()
    assert not logits(case.source, "seed").isfinite().all()
    ours = logits(case.gauged, None)
    theirs = hugging_face(case.gauged).half()(input_ids=case.ids, decoder_input_ids=decoder_ids).logits
    assert relative(ours, case.want.logits) < 2 * relative(theirs, case.want.logits) < 2 * RIGHT
    assert (ours.argmax(-1) == case.want.logits.argmax(-1)).double().mean() > 0.9
    options: dict[str, Any] = {"max_new_tokens": 8, "num_beams": 2}
    narrow: Any = T5ForConditionalGeneration.from_pretrained(case.gauged, torch.float16, None)
    written = narrow.generate(case.ids, **options)
    assert torch.equal(written, case.theirs.generate(case.ids, **options))
