"""Rotary positions: the angles, the turned pairs, and both inside attention."""

import composition
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from rounding import gamma


def turned(x, angles, interleaved=False):
    """x [..., seq, 1 or heads, channels] by angles [seq, 1, rotated], written with complex numbers."""
    rotated = angles.shape[-1]
    head, rest = x[..., :rotated], x[..., rotated:]
    if interleaved:
        pairs = torch.view_as_complex(head.unflatten(-1, (-1, 2)).contiguous())
        spun = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles[..., ::2]), angles[..., ::2])).flatten(-2)
    else:
        half = rotated // 2
        pairs = torch.complex(head[..., :half].contiguous(), head[..., half:].contiguous())
        spun = pairs * torch.polar(torch.ones_like(angles[..., :half]), angles[..., :half])
        spun = torch.cat((spun.real, spun.imag), -1)
    return torch.cat((spun, rest), -1)


def in_layout(x, layout):
    return x if layout == "sbhd" else x.transpose(0, 1)


@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_percent", [1.0, 0.5])
def test_pairs_are_turned_by_their_angle_and_gradients_back(layout, interleaved, rotary_percent):
    angles = te.RotaryPositionEmbedding(16, rotary_percent, interleaved=interleaved)(9)
    assert angles.shape == (9, 1, 1, int(16 * rotary_percent))
    x = in_layout(torch.randn(7, 3, 4, 16), layout).requires_grad_()
    seed = torch.randn(x.shape)
    ours = te.apply_rotary_pos_emb(x, angles, layout, interleaved)
    ours.backward(seed)
    exact_x = x.detach().double().requires_grad_()
    batch_first = exact_x if layout == "bshd" else exact_x.transpose(0, 1)
    exact = turned(batch_first, angles[:7, 0].double(), interleaved)
    exact = exact if layout == "bshd" else exact.transpose(0, 1)
    exact.backward(seed.double())
    composition.assert_close(ours, exact, "turned")
    composition.assert_close(x.grad, exact_x.grad, "gradient")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_values_round_once(dtype):
    angles = te.RotaryPositionEmbedding(8)(5)
    x = torch.randn(5, 2, 3, 8).to(dtype)
    assert torch.equal(te.apply_rotary_pos_emb(x, angles), te.apply_rotary_pos_emb(x.float(), angles).to(dtype))


def test_views_of_a_projection_are_read_in_place():
    angles = te.RotaryPositionEmbedding(8)(5)
    packed = torch.randn(5, 2, 9, 8)
    for view in (packed[:, :, 3:6], packed[:, :1, 3:6], packed[:, :, 3:6].transpose(0, 1), packed.flip(3)):
        seq = view if view.shape[0] == 5 else view.transpose(0, 1)
        expected = te.apply_rotary_pos_emb(seq.contiguous(), angles)
        layout = "sbhd" if view.shape[0] == 5 else "bshd"
        ours = te.apply_rotary_pos_emb(view, angles, layout)
        assert torch.equal(ours if layout == "sbhd" else ours.transpose(0, 1), expected)


@pytest.mark.parametrize("convert", [torch.nn.Module.bfloat16, torch.nn.Module.half, torch.nn.Module.double])
def test_angles_keep_their_bits_in_a_module_of_another_dtype(convert):
    embedding = te.RotaryPositionEmbedding(64)
    expected, saved = embedding(8192), {name: value.clone() for name, value in embedding.state_dict().items()}
    assert list(saved) == ["inv_freq"]
    convert(torch.nn.Sequential(embedding, torch.nn.Linear(2, 2)))
    assert torch.equal(embedding(8192), expected)
    embedding.load_state_dict({"inv_freq": saved["inv_freq"] / 2})
    assert torch.equal(embedding(9)[8], expected[4])
    embedding.load_state_dict({"inv_freq": saved["inv_freq"].bfloat16()}, assign=True)
    assert embedding(3).dtype == torch.float32
    assert embedding.to("meta")(3).is_meta


def test_scores_depend_on_distances_alone():
    embedding = te.RotaryPositionEmbedding(16)
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(query_at, key_at):
        one = te.apply_rotary_pos_emb(query, embedding(1, offset=query_at))
        return (one * te.apply_rotary_pos_emb(key, embedding(1, offset=key_at))).sum().item()

    # An angle of four roundings is off by its position times gamma(4), and turns a vector as far; four more roundings make a
    # rotated element, and sixteen the sum of the products.
    positions = 11 + 4 + 107 + 100
    bound = (gamma(4) * positions + 4 * gamma(4) + 2 * gamma(16)) * query.norm().item() * key.norm().item()
    assert abs(score(11, 4) - score(107, 100)) <= bound < abs(score(11, 4) - score(11, 5))


def test_interpolation():
    assert torch.equal(te.RotaryPositionEmbedding(8, seq_len_interpolation_factor=2)(5)[4], te.RotaryPositionEmbedding(8)(3)[2])
    long = te.RotaryPositionEmbedding(8, seq_len_interpolation_factor=2, pretrained_max_position_embeddings=4)(16)
    composition.assert_close(long[8], te.RotaryPositionEmbedding(8)(3)[2], "beyond the factor")


def test_packed_sequences_start_anew():
    angles = te.RotaryPositionEmbedding(8)(6)
    x = torch.randn(9, 2, 8)
    sums = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    ours = te.apply_rotary_pos_emb(x, angles, "thd", cu_seqlens=sums)
    for first, last in ((0, 4), (4, 9)):
        expected = te.apply_rotary_pos_emb(x[first:last, None], angles)[:, 0]
        assert torch.equal(ours[first:last], expected)


def test_packed_tokens_of_no_sequence_need_no_angles():
    angles = te.RotaryPositionEmbedding(8)(4)
    x, sums = torch.randn(128, 2, 8), torch.tensor([0, 4, 8], dtype=torch.int32)
    ours = te.apply_rotary_pos_emb(x, angles, "thd", cu_seqlens=sums)
    for first in (0, 4):
        assert torch.equal(ours[first : first + 4], te.apply_rotary_pos_emb(x[first : first + 4, None], angles)[:, 0])
    assert torch.equal(ours[8:], x[8:])
    with pytest.raises(ValueError, match="freqs of 5 positions, the longest sequence of cu_seqlens, or more, got 4"):
        te.apply_rotary_pos_emb(x, angles, "thd", cu_seqlens=torch.tensor([0, 5]))


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
@pytest.mark.parametrize("groups", [4, 2])
def test_attention_turns_queries_and_keys(fuse, layout, groups):
    module = te.MultiheadAttention(
        32, 4, num_gqa_groups=groups, attention_dropout=0.0, fuse_qkv_params=fuse, qkv_weight_interleaved=False, qkv_format=layout
    )
    composition.randomize(module)
    angles = te.RotaryPositionEmbedding(8)(6)
    names = ["qkv.weight"] if fuse else [f"qkv.{part}_weight" for part in ("query", "key", "value")]

    def exact(parameters, x):
        weight = torch.cat([parameters[name] for name in names])
        bias = torch.cat([parameters[name.replace("weight", "bias")] for name in names])
        sizes = (32, 8 * groups, 8 * groups)
        query, key, value = (part.unflatten(-1, (-1, 8)) for part in torch.nn.functional.linear(x, weight, bias).split(sizes, -1))
        to_heads = (0, 2, 1, 3) if layout == "bshd" else (1, 2, 0, 3)
        table = angles[:5, 0].to(x.dtype) if layout == "bshd" else angles[:5].to(x.dtype)
        query, key = turned(query, table), turned(key, table)
        query, key, value = (part.permute(to_heads) for part in (query, key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        back = (0, 2, 1, 3) if layout == "bshd" else (2, 0, 1, 3)
        return torch.nn.functional.linear(attended.permute(back).flatten(2), parameters["proj.weight"], parameters["proj.bias"])

    x = in_layout(torch.randn(5, 3, 32), layout).contiguous()
    composition.check(module, exact, x, forward=lambda x: module(x, rotary_pos_emb=angles))


def test_transformer_layer_takes_one_for_each_of_query_and_key():
    layer = te.TransformerLayer(16, 24, 2, hidden_dropout=0.0, attention_dropout=0.0)
    angles = te.RotaryPositionEmbedding(8)(5)
    x = torch.randn(5, 2, 16)
    with te.fp8_autocast(fp8_recipe=recipe.Float8CurrentScaling()):
        plain, one = layer(x), layer(x, rotary_pos_emb=angles)
        assert torch.equal(one, layer(x, rotary_pos_emb=(angles, angles)))
    assert not torch.equal(one, plain)
    decoder = te.TransformerLayer(16, 24, 2, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder")
    assert decoder(x, encoder_output=torch.randn(4, 2, 16), rotary_pos_emb=angles).shape == x.shape


def test_torch_compile():
    angles = te.RotaryPositionEmbedding(8)(5)
    x = torch.randn(5, 2, 3, 8, requires_grad=True)
    expected = te.apply_rotary_pos_emb(x, angles)
    compiled = torch.compile(te.apply_rotary_pos_emb, fullgraph=True, backend="aot_eager")(x, angles)
    assert torch.equal(compiled, expected)
    seed = torch.randn(x.shape)
    assert torch.equal(*(torch.autograd.grad(y, x, seed)[0] for y in (compiled, expected)))


@pytest.mark.parametrize(
    "call,error,message",
    [
        (lambda a: te.apply_rotary_pos_emb(torch.randn(6, 1, 1, 8), a), RuntimeError, "angles for 6 positions, got 5"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 1, 6), a), RuntimeError, "at most 6, got 8"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 8), a), ValueError, "t of 4 dimensions"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 1, 8), a[:, 0]), ValueError, "rotary_pos_emb"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 8), a, "thd"), ValueError, "cu_seqlens"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 1, 8), a, "hd"), ValueError, "tensor_format"),
        (lambda a: te.apply_rotary_pos_emb(torch.randn(5, 1, 1, 8), a, cp_size=2), NotImplementedError, "cp_size"),
        (lambda a: te.RotaryPositionEmbedding(8, rotary_percent=0.0), ValueError, "rotary_percent"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(te.RotaryPositionEmbedding(8)(5))
