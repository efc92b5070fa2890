"""`plimsoll gauge`: outliers that no fixed scale survives, in plain FP16 with FP32's answers, and the bits of FP32 kept."""

import copy
import subprocess
from typing import Any

import pytest
import torch
from gauge_program import PROGRAM, gauge, hugging_face, write_ids
from plimsoll.t5 import T5ForConditionalGeneration
from program import interrupted
from rounded_results import RoundedResults, round_significand
from safetensors.torch import load_file
from t5_models import inputs, make, relative, save
from t5_outliers import graft

# The table of docs/t5.md: 8 layers, d_model 512, 64 tokens.
ENCODER = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 2, "num_heads": 6}
AMAX = 1.9e6  # g = 1e5
FP16_BITS = 11


def logits_bound(theirs, decoder_ids, narrow, want):
    """Twice what a decoder in FP32 makes of the encoder's rounding: its own is no larger."""
    encoded = narrow.encoder_last_hidden_state.float()
    return 2 * relative(theirs(encoder_outputs=(encoded,), decoder_input_ids=decoder_ids).logits, want.logits)


@pytest.fixture(scope="module")
def encoder_bound(outliers):
    """Twice what FP16's significand alone does to the encoder's output in double, with no limit of range: the model's
    roundings are as many at most, but other draws of the same."""
    theirs, ids, *_ = outliers
    exact = copy.deepcopy(theirs.encoder).double()
    want = exact(input_ids=ids).last_hidden_state
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(round_significand(parameter, FP16_BITS))
        with RoundedResults(FP16_BITS):
            return 2 * relative(exact(input_ids=ids).last_hidden_state, want)


@pytest.fixture(scope="module")
def outliers(tmp_path_factory):
    """(Hugging Face's model, ids, decoder ids, its directory, the gauged directory, the certificate)."""
    theirs = make("v1.1", **ENCODER)
    ids, _ = inputs(theirs, [64])
    assert graft(theirs, ids, AMAX).reaches(AMAX)
    decoder_ids = torch.cat([torch.zeros(1, 1, dtype=torch.long), ids[:, :20]], 1)
    root = tmp_path_factory.mktemp("gauge")
    folder, out = save(theirs, root / "model"), root / "gauged"
    file = write_ids(root / "in.jsonl", {"input_ids": ids[0].tolist(), "decoder_input_ids": decoder_ids[0].tolist()})
    return theirs, ids, decoder_ids, folder, out, gauge(folder, out, "--calibrate", file)


@torch.no_grad()
def test_plain_fp16_has_fp32s_answers(outliers, encoder_bound):
    theirs, ids, decoder_ids, folder, out, certificate = outliers
    want = theirs(input_ids=ids, decoder_input_ids=decoder_ids)

    def fp16(directory, fixes):
        ours = T5ForConditionalGeneration.from_pretrained(directory, torch.float16, fixes)
        return ours(input_ids=ids, decoder_input_ids=decoder_ids)

    assert fp16(folder, None).encoder_last_hidden_state.isnan().any()  # naive
    assert not relative(fp16(folder, "seed").encoder_last_hidden_state, want.encoder_last_hidden_state) < 1
    gauged = fp16(out, None)
    error = relative(gauged.encoder_last_hidden_state, want.encoder_last_hidden_state)
    assert error < encoder_bound
    assert certificate["fp16"]["finite"]
    # The certificate's error is from our FP32, this one from Hugging Face's: the two differ by at most what lies between.
    ours = T5ForConditionalGeneration.from_pretrained(out, torch.float32)
    apart = relative(ours.encode(ids), want.encoder_last_hidden_state)
    assert abs(certificate["fp16"]["encoder_relative_l2"] - error) <= apart * (1 + 2 * error) < error
    assert relative(gauged.logits, want.logits) < logits_bound(theirs, decoder_ids, gauged, want)


@torch.no_grad()
def test_fp32_keeps_its_bits(outliers):
    theirs, ids, decoder_ids, folder, out, certificate = outliers
    assert certificate["fp32"]["bit_identical"]
    assert certificate["calibration"]["inputs"] == 1 and certificate["calibration"]["input_tokens"] == 64
    source, gauged = (
        T5ForConditionalGeneration.from_pretrained(at)(input_ids=ids, decoder_input_ids=decoder_ids) for at in (folder, out)
    )
    assert torch.equal(source.logits, gauged.logits)
    assert torch.equal(source.encoder_last_hidden_state, gauged.encoder_last_hidden_state)
    again = hugging_face(out)(input_ids=ids, decoder_input_ids=decoder_ids)
    assert torch.equal(again.logits, theirs(input_ids=ids, decoder_input_ids=decoder_ids).logits)


@torch.no_grad()
def test_hugging_face_runs_it_in_fp16(outliers, encoder_bound):
    theirs, ids, decoder_ids, folder, out, _ = outliers
    want = theirs(input_ids=ids, decoder_input_ids=decoder_ids)
    naive, gauged = hugging_face(folder).half(), hugging_face(out).half()
    naive_encoded = naive.encoder(input_ids=ids).last_hidden_state
    assert not relative(naive_encoded, want.encoder_last_hidden_state) < 1  # clamped, and wrong
    result = gauged(input_ids=ids, decoder_input_ids=decoder_ids)
    assert result.logits.isfinite().all()
    assert relative(result.encoder_last_hidden_state, want.encoder_last_hidden_state) < encoder_bound
    assert relative(result.logits, want.logits) < logits_bound(theirs, decoder_ids, result, want)


@torch.no_grad()
def test_it_generates(outliers):
    theirs, ids, _, folder, out, _ = outliers
    options: dict[str, Any] = {"max_new_tokens": 12}
    want = theirs.generate(ids, **options)
    ours: Any = T5ForConditionalGeneration.from_pretrained(out)
    assert torch.equal(ours.generate(ids, **options), want)
    narrow = T5ForConditionalGeneration.from_pretrained(out, torch.float16, None)
    written = hugging_face(out).half().generate(ids, **options, return_dict_in_generate=True, output_logits=True)
    assert all(step.isfinite().all() for step in written.logits)
    # FP32's two best first tokens may be nearer to each other than FP16's rounding: the first logits are held to the
    # bound, and the token to these.
    first = want[:, :1]
    exact, ours = (model(input_ids=ids, decoder_input_ids=first) for model in (theirs, narrow))
    assert relative(ours.logits, exact.logits) < logits_bound(theirs, first, ours, exact)
    assert narrow.generate(ids, **options)[0, 1] == ours.logits[0, 0].argmax()
    assert written.sequences[0, 1] == written.logits[0][0].argmax()
    assert narrow(input_ids=ids, decoder_input_ids=want).logits.isfinite().all()


def test_every_tensor_keeps_its_headroom(outliers):
    certificate = outliers[-1]
    assert certificate["below_headroom"] == []
    tensors = certificate["weights"] + certificate["values"]
    assert min(tensor["headroom_bits"] for tensor in tensors) >= 3
    assert min(tensor["headroom_bits_before"] for tensor in tensors) < -4  # 1.9e6
    assert certificate["exponents"]["residual"] < 0
    assert max(tensor["lost_bits"] for tensor in certificate["weights"]) < 0.5


@pytest.mark.parametrize("kind", ["v1.0", "silu, tied", "UMT5", "UMT5, untied", "mT5", "mT5, tied"])
@torch.no_grad()
def test_tied_heads_and_other_kinds(kind, tmp_path):
    theirs = make(kind)
    for block in theirs.encoder.block:
        block.layer[1].DenseReluDense.wo.weight[3] *= 3e5
    ids, mask = inputs(theirs, [9, 6])
    folder, out = save(theirs, tmp_path / "model"), tmp_path / "gauged"
    file = write_ids(
        tmp_path / "in.jsonl", *({"input_ids": row[: int(m.sum())].tolist()} for row, m in zip(ids, mask, strict=True))
    )
    certificate = gauge(folder, out, "--calibrate", file, "--headroom-bits", 2)
    assert certificate["fp32"]["bit_identical"] and certificate["fp16"]["finite"]
    assert certificate["exponents"]["residual"] < 0 and certificate["calibration"]["decoder_tokens"] > 0
    arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    want = theirs(**arguments).logits
    again = hugging_face(out, type(theirs))
    assert torch.equal(again(**arguments).logits, want)
    assert again.half()(**arguments).logits.isfinite().all()


@torch.no_grad()
def test_the_worst_case_needs_no_inputs(tmp_path):
    """Bounds that hold for every input: no calibration sees more."""
    theirs = make("v1.0")
    theirs.encoder.block[1].layer[1].DenseReluDense.wo.weight[3] *= 3e4
    ids, _ = inputs(theirs, [12])
    folder = save(theirs, tmp_path / "model")
    bounded = gauge(folder, tmp_path / "bounded")
    calibrated = gauge(
        folder, tmp_path / "calibrated", "--calibrate", write_ids(tmp_path / "in.jsonl", {"input_ids": ids[0].tolist()})
    )
    bounds = {value["name"]: value["headroom_bits_before"] for value in bounded["values"]}
    assert all(bounds[value["name"]] <= value["headroom_bits_before"] for value in calibrated["values"])
    assert bounded["exponents"]["residual"] < calibrated["exponents"]["residual"] <= 0
    assert bounded["fp32"]["bit_identical"] and bounded["fp16"]["finite"] and bounded["below_headroom"] == []
    assert bounded["calibration"] == {"kind": "worst case, from the weights"}


def test_an_interrupted_gauge_leaves_nothing(tmp_path):
    folder = save(make("v1.1", **ENCODER), tmp_path / "model")
    words = ["gauge", "--model", folder, "--out", tmp_path / "out"]
    output, error, code = interrupted(words, (tmp_path / "out.partial").exists)
    assert output == "" or output.startswith("measuring ")
    assert (error, code) == ("plimsoll: gauge: interrupted, nothing is written\n", 130)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_model_that_fits_stays(tmp_path):
    theirs = make("v1.1")
    folder, out = save(theirs, tmp_path / "model"), tmp_path / "gauged"
    (folder / "generation_config.json").write_text("{}")
    (folder / "spiece.model").write_text("anything")
    certificate = gauge(folder, out, "--calibrate", write_ids(tmp_path / "in.jsonl", {"input_ids": [5, 6, 1]}))
    assert certificate["exponents"]["residual"] == 0 and set(certificate["exponents"]["pairs"].values()) == {0}
    before, after = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert (out / "spiece.model").read_text() == "anything" and (out / "generation_config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--out", "x"], 2, "expected --model DIR"),
        (["--model", "{model}"], 2, "expected --out DIR"),
        (["--model", "{model}", "--out", "{model}"], 2, "expected a free name"),
        (
            ["--model", "{model}", "--out", "{new}", "--calibrate", "{bad}"],
            1,
            "line 1: decoder_input_ids: expected an array of ids",
        ),
        (["--model", "{model}", "--out", "{new}", "--calibrate", "{text}"], 1, "expected spiece.model"),
        (["--model", "{model}", "--out", "/nowhere/new"], 1, "/nowhere/new"),
        (["--model", "{model}", "--out", "{new}", "--headroom-bits", "20"], 2, "--headroom-bits"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(arguments, code, expected, tmp_path):
    save(make("v1.1"), tmp_path / "model")
    (tmp_path / "in.txt").write_text("text")
    places = {
        "{model}": tmp_path / "model",
        "{new}": tmp_path / "new",
        "{text}": tmp_path / "in.txt",
        "{bad}": write_ids(tmp_path / "bad.jsonl", {"input_ids": [5], "decoder_input_ids": [9999]}),
    }
    done = subprocess.run(
        [PROGRAM, "gauge", *(places.get(argument, argument) for argument in arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("plimsoll: ") and done.stderr.count("\n") == 1, done.stderr
    assert expected in done.stderr, done.stderr
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists()
