"""Options of LayerNormMLP, MultiheadAttention and TransformerLayer that change what is computed: each has the bits of its
parts called one by one, under every recipe."""

import contextlib

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch

HIDDEN, FEATURES, HEADS, GROUPS, CHANNELS = 32, 48, 4, 2, 12
SEQ, BATCH = 5, 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def scope(name):
    if name is None:
        return contextlib.nullcontext()
    return te.fp8_autocast(fp8_recipe=oracle.RECIPES[name])


def bits(output, inputs, module):
    """The output, the gradients of the input and of every parameter, and the scaling state."""
    output.backward(torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output.dtype))
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"output": output.detach(), "input": inputs.grad, **gradients, **dict(module.named_buffers())}


def assert_same(ours, parts):
    assert ours.keys() == parts.keys()
    for name, value in ours.items():
        assert torch.equal(value, parts[name]), name


def hidden():
    return torch.linspace(-2, 2, SEQ * BATCH * HIDDEN).sin().reshape(SEQ, BATCH, HIDDEN).requires_grad_()


@pytest.mark.parametrize("name", [None, *oracle.RECIPES])
def test_an_mlp_with_checkpoint_has_the_bits_of_one_without(name):
    kept = composition.randomize(te.LayerNormMLP(HIDDEN, FEATURES, activation="qgeglu"))
    again = te.LayerNormMLP(HIDDEN, FEATURES, activation="qgeglu", checkpoint=True)
    again.load_state_dict(kept.state_dict())
    results = []
    for module in (kept, again):
        for _ in range(2):  # the second step's scales come from the first one's amaxes
            module.zero_grad()
            x = hidden()
            with scope(name):
                output = module(x)
            result = bits(output, x, module)
        results.append(result)
    assert_same(*results)


def test_an_mlp_with_checkpoint_keeps_its_input_alone():
    saved = []
    for checkpoint in (False, True):
        module = te.LayerNormMLP(HIDDEN, FEATURES, checkpoint=checkpoint)
        kept: list[int] = []

        def pack(x, kept=kept):
            kept.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            module(hidden())
        saved.append(sum(kept))
    assert saved[1] == SEQ * BATCH * HIDDEN < saved[0]


def attention(**options):
    return te.MultiheadAttention(
        HIDDEN, HEADS, CHANNELS, 0.0, num_gqa_groups=GROUPS, input_layernorm=True, layer_number=1, **options
    )


def manual_attention(module, x, angles):
    """The module's parts, one by one."""
    projected = module.layernorm_qkv(x).unflatten(-1, (HEADS + 2 * GROUPS, CHANNELS))
    query, key, value = projected.split((HEADS, GROUPS, GROUPS), -2)
    if module.qk_norm_before_rope:
        query, key = module.q_norm(query), module.k_norm(key)
    if angles is not None:
        query, key = (te.apply_rotary_pos_emb(part, angles, tensor_format="sbhd") for part in (query, key))
    if not module.qk_norm_before_rope:
        query, key = module.q_norm(query), module.k_norm(key)
    return module.proj(module.core_attention(query, key, value, attn_mask_type="causal"))


@pytest.mark.parametrize("name", [None, "delayed", "mxfp8"])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
def test_query_and_key_norms_stand_before_the_products(kind, before, turns, name):
    options = {"qk_norm_type": kind, "qk_norm_before_rope": before, "fuse_qkv_params": True, "qkv_weight_interleaved": False}
    module, parts = attention(**options), attention(**options)
    composition.randomize(module)
    parts.load_state_dict(module.state_dict())
    angles = te.RotaryPositionEmbedding(CHANNELS)(SEQ) if turns else None
    x, y = hidden(), hidden()
    with scope(name):
        ours, theirs = module(x, rotary_pos_emb=angles), manual_attention(parts, y, angles)
    assert_same(bits(ours, x, module), bits(theirs, y, parts))


@pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
def test_the_norm_of_a_head_is_what_its_name_says(kind):
    module = attention(qk_norm_type=kind, qk_norm_eps=1e-3, zero_centered_gamma=True)
    assert module.q_norm is not module.k_norm
    x = torch.randn(7, 2, HEADS, CHANNELS)

    def exact(parameters, x):
        if kind == "L2Normalization":
            return x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt()
        return composition.norm(x, parameters["weight"], parameters.get("bias"), kind, True, 1e-3)

    composition.check(module.q_norm, exact, x)


def test_an_l2_norm_has_nothing_that_a_module_made_on_meta_or_converted_could_lose():
    plain = attention(qk_norm_type="L2Normalization")
    late = attention(qk_norm_type="L2Normalization", device="meta").to_empty(device="cpu")
    x = torch.randn(7, 2, HEADS, CHANNELS)
    expected = plain.q_norm(x)
    assert torch.equal(late.q_norm(x), expected)
    assert torch.equal(plain.bfloat16().q_norm(x), expected)
    assert not list(plain.q_norm.buffers())


def test_a_module_without_query_and_key_norms_has_none():
    module = attention()
    assert module.q_norm is None and module.k_norm is None
    with pytest.raises(ValueError, match=r"qk_norm_type one of None, .*got 'BatchNorm'"):
        attention(qk_norm_type="BatchNorm")


def layer(**options):
    return te.TransformerLayer(HIDDEN, FEATURES, HEADS, GROUPS, hidden_dropout=0.0, attention_dropout=0.0, **options)


def manual_layer(module, x, encoder):
    post, last = module.apply_residual_connection_post_layernorm, module.output_layernorm

    def residual(norm, total):
        return norm.normalized(total) if post else total

    def attend(attention, total, **options):
        output = attention(total, **options)
        if last:  # no norm of its own
            return output + total
        return output + residual(
            attention.layernorm_qkv if attention is module.self_attention else attention.layernorm_query, total
        )

    if module.parallel_attention_mlp:
        return module.self_attention(x) + module.layernorm_mlp(x) + x
    x = attend(module.self_attention, x)
    if module.layer_type == "decoder":
        x = attend(module.inter_attention, x, encoder_output=encoder)
    x = module.layernorm_mlp(x) + residual(module.layernorm_mlp, x)
    return module.layernorm(x) if last else x


@pytest.mark.parametrize("name", [None, "delayed", "mxfp8"])
@pytest.mark.parametrize("layer_type", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "options",
    [
        {"apply_residual_connection_post_layernorm": True},
        {"output_layernorm": True},
        {"output_layernorm": True, "apply_residual_connection_post_layernorm": True},
        {"parallel_attention_mlp": True},
        {"qk_norm_type": "RMSNorm", "normalization": "RMSNorm"},
    ],
    ids=lambda options: "-".join(options),
)
def test_where_a_layer_adds_and_normalises(options, layer_type, name):
    if "parallel_attention_mlp" in options and layer_type == "decoder":
        with pytest.raises(ValueError, match="expected layer_type 'encoder' with parallel_attention_mlp, got 'decoder'"):
            layer(layer_type=layer_type, **options)
        return
    options = {**options, "layer_type": layer_type}
    module, parts = layer(**options), layer(**options)
    composition.randomize(module)
    parts.load_state_dict(module.state_dict())
    encoder = torch.randn(SEQ, BATCH, HIDDEN)
    x, y = hidden(), hidden()
    with scope(name):
        ours, theirs = module(x, encoder_output=encoder), manual_layer(parts, y, encoder)
    assert_same(bits(ours, x, module), bits(theirs, y, parts))


@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_drop_path_skips_a_branch_for_whole_samples(layout):
    rate, samples = 0.25, 64
    module = layer(drop_path_rate=rate, parallel_attention_mlp=True, attn_input_format=layout)
    always = layer(parallel_attention_mlp=True, attn_input_format=layout)
    always.load_state_dict(module.state_dict())
    shape = (SEQ, samples, HIDDEN) if layout == "sbhd" else (samples, SEQ, HIDDEN)
    x = torch.randn(shape)
    branch = always(x) - x
    dropped = module(x)
    by_sample = [each.transpose(0, 1) if layout == "sbhd" else each for each in (x, branch, dropped)]
    skipped = 0
    for source, change, result in zip(*by_sample, strict=True):
        if torch.equal(result, source):
            skipped += 1
        else:
            composition.assert_close(result - source, change.double() / (1 - rate), "kept", 1e-5)
    # The count is binomial: outside of these bounds once in 10^6 runs of other seeds.
    assert 1 <= skipped <= 36
    assert torch.equal(module.eval()(x), always.eval()(x))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_drop_path_rate_that_is_no_share_is_an_error(rate):
    with pytest.raises(ValueError, match=r"drop_path_rate in \[0, 1\)"):
        layer(drop_path_rate=rate)


def test_packed_sequences_have_no_samples_to_skip():
    with pytest.raises(NotImplementedError, match="drop_path_rate 0 with attn_input_format 'thd'"):
        layer(drop_path_rate=0.1, attn_input_format="thd")


@pytest.mark.parametrize(
    "options",
    [
        {"apply_residual_connection_post_layernorm": True},
        {"output_layernorm": True},
        {"parallel_attention_mlp": True},
        {"qk_norm_type": "L2Normalization"},
    ],
    ids=lambda options: "-".join(options),
)
def test_torch_compile_gives_the_bits_of_eager_mode(options):
    module = composition.randomize(layer(**options))
    x = hidden().detach()
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES["mxfp8"]):
        eager = module(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(eager, compiled)
