"""`plimsoll serve --watch`: the headroom of the layers, what overflowed, and replies with the bits that they have unwatched."""

import json

import pytest
from safetensors.torch import load_file, save_file
from served import openai, serving, write_tiny

OPTIONS = {"model": "any", "prompt": "The sea", "max_tokens": 10, "temperature": 0, "logprobs": 0}


def headroom(served):
    status, _, body = served.ask("GET", "/headroom")
    assert status == 200
    return json.loads(body)


def test_a_watched_server_shows_the_headroom_of_each_layer(tmp_path):
    tiny = write_tiny(tmp_path)
    with serving(tiny, "--dtype", "fp16") as served:
        unwatched = served.client.completions.create(**OPTIONS).choices[0]
        assert headroom(served) == {"watch": False, "layers": []}
        assert b"overflowed" not in served.ask("GET", "/metrics")[2]
        assert served.stop() == 0
    with serving(tiny, "--dtype", "fp16", "--watch", "guard") as served:
        assert headroom(served)["watch"]
        reply = served.client.completions.create(**OPTIONS).choices[0]
        assert reply.text == unwatched.text and reply.logprobs == unwatched.logprobs
        layers = {layer["name"]: layer for layer in headroom(served)["layers"]}
        names = {f"blocks.{i}.{part}/output" for i in range(2) for part in ("layernorm_mlp.fc1", "layernorm_mlp.fc2")}
        assert names <= set(layers), sorted(layers)
        assert all(layer["format"] == "fp16" and 0 < layer["headroom_bits"] < 40 for layer in layers.values())
        assert served.metric("watched_results_total") >= 10 * len(layers) and served.metric("overflowed_total") == 0
        assert served.stop() == 0


def test_what_overflows_is_counted(tmp_path):
    tiny = write_tiny(tmp_path)
    weights = load_file(tiny / "model.safetensors")
    up = weights["model.layers.1.mlp.up_proj.weight"]
    up *= 6e4 / up.abs().max()  # FP16 holds the weights, but not their products
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    with serving(tiny, "--dtype", "fp16", "--watch", "guard") as served:
        with pytest.raises(openai.InternalServerError, match="expected finite logits"):
            served.client.completions.create(**OPTIONS)
        assert served.metric("overflowed_total") > 0
        first = next(layer for layer in headroom(served)["layers"] if layer["name"] == "blocks.1.layernorm_mlp.fc1/output")
        assert first["non_finite"] > 0
        assert served.stop() == 0
