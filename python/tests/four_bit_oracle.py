"""A linear layer under the recipes of four bits: their codes written apart from the library in NumPy's FP32, an operation at a
time, and their products in double."""

import math

import numpy as np
import oracle
import torch
from plimsoll.common import recipe

F32 = np.float32
FLT_MAX = np.finfo(F32).max
EDEN_TARGET = F32(6 / (17 / 16 * 0.93))  # magnitude that MS-EDEN takes a block's amax to
SIGNS = 0  # steps of the random numbers of one seed; roundings along rows, and one more along columns
ROWS = {"grad_output": 1, "input": 3, "weight": 5}

RECIPES = {
    "nvfp4": recipe.NVFP4BlockScaling(),
    "nvfp4-4over6": recipe.NVFP4BlockScaling(four_over_six=True),
    "nvfp4-unrotated": recipe.NVFP4BlockScaling(disable_rht=True),
    "nvfp4-nearest": recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "nvfp4-rows": recipe.NVFP4BlockScaling(disable_2d_quantization=True),
    "ms-eden": recipe.NVFP4BlockScaling(ms_eden=True),
    "ms-eden-unrotated": recipe.NVFP4BlockScaling(ms_eden=True, disable_rht=True),
    "ms-eden-nearest": recipe.NVFP4BlockScaling(ms_eden=True, disable_stochastic_rounding=True, disable_2d_quantization=True),
    "mxfp4": recipe.MXFP4BlockScaling(),
    "mxfp4-down": recipe.MXFP4BlockScaling(rounding="down"),
}


def drawn_seed():
    """The 64 random bits that torch's CPU generator has next."""
    return int(torch.empty(1, dtype=torch.int64).random_(-(2**63), None)) % 2**64


def philox_word(seed, step, element):
    """Word of Philox4x32-10 (Salmon et al., 2011) whose counter is the element's block of four and the step."""
    counter = [element // 4 % 2**32, element // 4 >> 32, step % 2**32, step >> 32]
    key = [seed % 2**32, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second % 2**32, (first >> 32) ^ counter[3] ^ key[1], first % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter[element % 4]


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def rounding_bits(seed, step, words, odd):
    """16 random bits: the upper half of each word where `odd`."""
    key = splitmix((seed + splitmix((step + splitmix(0)) % 2**64)) % 2**64)
    x = words.astype(np.uint32) ^ np.uint32(key % 2**32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15)) ^ np.uint32(key >> 32)) * np.uint32(0xD35A2D97)
    x = x ^ (x >> np.uint32(15))
    return np.where(odd, x >> np.uint32(16), x & np.uint32(0xFFFF)).astype(np.float64)


def rotated(lines, seed, size=16):
    """Groups of each line times a Sylvester matrix and random signs, over the root of their size; zeros fill the last group."""
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % size))).astype(F32)
    words = [philox_word(seed, SIGNS, i) for i in range(math.ceil(size / 32))]
    signs = np.array([-1 if words[i // 32] >> i % 32 & 1 else 1 for i in range(size)]) * F32(1 / math.sqrt(size))
    groups = lines.reshape(len(lines), -1, size) * signs.astype(F32)
    distance = 1
    while distance < size:
        halves = groups.reshape(*groups.shape[:2], -1, 2, distance)
        groups = np.stack([halves[..., 0, :] + halves[..., 1, :], halves[..., 0, :] - halves[..., 1, :]], -2)
        groups = groups.reshape(len(lines), -1, size)
        distance *= 2
    return groups.reshape(lines.shape)


def e2m1(x, bits=None):
    """x to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to an even code; up where `bits` of 2^16 and the distance say so."""
    magnitude = np.abs(x).astype(np.float64)
    unit = np.where(magnitude < 2, 0.5, np.where(magnitude < 4, 1.0, 2.0))
    steps = np.rint(magnitude / unit) if bits is None else np.floor((np.rint(magnitude / unit * 2**16) + bits) / 2**16)
    return np.copysign(np.minimum(steps * unit, 6), x)


def e4m3(x):
    return torch.from_numpy(np.minimum(x, F32(448))).to(torch.float8_e4m3fn).float().numpy()


def blocks_of(lines, size, side):
    """[line blocks, side, blocks, size], zeros where there is nothing."""
    padded = np.pad(lines, ((0, -lines.shape[0] % side), (0, -lines.shape[1] % size)))
    return padded.reshape(padded.shape[0] // side, side, -1, size)


def factor_of(encode_scale, scale):
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, FLT_MAX, np.minimum(encode_scale / np.where(scale == 0, F32(1), scale), FLT_MAX)).astype(F32)


def tree_of_eight(x):
    """FP32 sums of the last axis."""
    p = np.moveaxis(x, -1, 0)
    return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))


def squares_left(blocks, scale, encode_scale):
    """FP32 sums in the documented order: pairs of neighbours, over the lines of a square, then a tree of the eight."""
    each = scale[:, None, :, None]
    values = np.abs(e2m1(blocks * factor_of(encode_scale, each))).astype(F32)
    error = values * each - np.abs(blocks * encode_scale)
    error = error * error
    pairs = np.zeros((blocks.shape[0], blocks.shape[2], 8), F32)
    for line in range(blocks.shape[1]):
        pairs = pairs + (error[:, line, :, 0::2] + error[:, line, :, 1::2])
    return tree_of_eight(pairs)


def nvfp4_scales(blocks, encode_scale, four_over_six):
    amax = np.abs(blocks).max((1, 3))
    to_six = e4m3(amax * (encode_scale / F32(6)))
    if not four_over_six:
        return to_six
    to_four = e4m3(amax * (encode_scale / F32(4)))
    better = squares_left(blocks, to_four, encode_scale) < squares_left(blocks, to_six, encode_scale)
    return np.where(better, to_four, to_six)


def mxfp4_scales(blocks, rounding):
    mantissa, exponent = np.frexp(np.abs(blocks).max((1, 3)).astype(np.float64))
    exponent = exponent - 3 + ((mantissa > 0.75) if rounding == "up" else 0)  # 6 is 0.75 * 2^3
    return np.where(mantissa == 0, 2.0**-127, np.exp2(np.clip(exponent, -127, 127)))


def values_of_codes(rule, x, *, along_columns=False, square=False, rotation_seed=None, noise_seed=None):
    """In double, of the codes of a stored tensor with blocks along its rows or its columns: [lines, sum]."""
    lines = (x.T if along_columns else x).astype(F32)
    if rotation_seed is not None:
        lines = rotated(lines, rotation_seed)
    blocks = blocks_of(lines, 16 if rule.nvfp4() else 32, 16 if square else 1)
    if rule.nvfp4():
        amax, largest = np.abs(lines).max(initial=0), F32((256 if rule.four_over_six else 448) * 6)
        encode_scale = F32(1) if amax == 0 else np.minimum(largest / amax, FLT_MAX)
        scale = nvfp4_scales(blocks, encode_scale, rule.four_over_six)
        factor, tensor_scale = factor_of(encode_scale, scale), float(F32(1) / encode_scale)
    else:
        scale, tensor_scale = mxfp4_scales(blocks, rule.rounding), 1.0
        factor = (1 / scale).astype(F32)
    bits = None
    if noise_seed is not None:
        line, place = np.arange(lines.shape[0])[:, None], np.arange(lines.shape[1])[None]
        across = math.ceil(lines.shape[0] / 32) * 32
        words = place // 2 * across + line if along_columns else line * 16 * math.ceil(x.shape[1] / 32) + place // 2
        drawn = rounding_bits(noise_seed, ROWS["grad_output"] + along_columns, words, place % 2 == 1)
        bits = blocks_of(drawn, blocks.shape[3], blocks.shape[1])
    values = e2m1(blocks * factor[:, None, :, None], bits) * scale[:, None, :, None].astype(np.float64) * tensor_scale
    return torch.from_numpy(values.reshape(values.shape[0] * values.shape[1], -1)[: lines.shape[0], : lines.shape[1]])


def e4m3_stochastic(x, bits):
    """Positive x between two codes goes up where `bits` of 2^16 and its distance from the lower one say so."""
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(x, F32(2.0**-10)))), -6) - 3.0)
    return np.minimum(np.floor((np.rint(x / unit * 2**16) + bits) / 2**16) * unit, 448)


def values_of_eden(rule, x, role, along_columns, seed):
    """In double, of the MS-EDEN codes of a stored tensor: [lines, sum]."""
    lines = (x.T if along_columns else x).astype(F32)
    length = lines.shape[1]
    if not rule.disable_rht:
        lines = rotated(lines, seed, 128)
    blocks = np.pad(blocks_of(lines, 16, 1)[:, 0], ((0, 0), (0, -math.ceil(lines.shape[1] / 16) % 8), (0, 0)))
    amax = np.abs(lines).max(initial=0)
    encode_scale = F32(1) if amax == 0 else np.minimum(F32(255.99) * EDEN_TARGET / amax, FLT_MAX)
    scale = e4m3(np.abs(blocks).max(2) * (encode_scale / EDEN_TARGET))
    each = scale[..., None]
    codes = e2m1(blocks * factor_of(encode_scale, each))
    y = np.abs(blocks * encode_scale)
    sums = []
    for terms in (y * y, y * (np.abs(codes).astype(F32) * each)):
        of_blocks = tree_of_eight(terms[..., 0::2] + terms[..., 1::2])
        sums.append(tree_of_eight(of_blocks.reshape(len(lines), -1, 8)))
    correction = np.where(sums[1] > 0, sums[0] / np.where(sums[1] > 0, sums[1], F32(1)), F32(1)).astype(F32)
    scale = scale * np.repeat(correction, 8, 1)
    if rule.disable_stochastic_rounding:
        scale = e4m3(scale)
    else:
        line, block = np.arange(scale.shape[0])[:, None], np.arange(scale.shape[1])[None]
        row_words, column_words = math.ceil(math.ceil(length / 16) / 32) * 16, math.ceil(len(lines) / 32) * 32
        words = block // 2 * column_words + line if along_columns else line * row_words + block // 2
        scale = e4m3_stochastic(scale, rounding_bits(seed, ROWS[role] + along_columns, words, block % 2 == 1))
    values = codes * scale[..., None].astype(np.float64) * float(F32(1) / encode_scale)
    return torch.from_numpy(values.reshape(len(lines), -1)[:, : lines.shape[1]])


def operand(rule, x, role, product, seed):
    """[lines, sum] in double, as it enters the product."""
    over_rows = (role, product) in oracle.OVER_ROWS
    if rule.override_linear_precision[("fprop", "dgrad", "wgrad").index(product)]:
        return (x.T if over_rows else x).double()
    if not rule.nvfp4() and role == "grad_output":
        values = oracle.operand(recipe.MXFP8BlockScaling(rounding=rule.rounding), x, role, product)
        return values.T if over_rows else values
    if not rule.nvfp4():
        return values_of_codes(rule, x.numpy(), along_columns=over_rows)
    if rule.ms_eden and product != "fprop":
        return values_of_eden(rule, x.numpy(), role, over_rows, seed)
    if role == "weight" and not rule.disable_2d_quantization:
        values = values_of_codes(rule, x.numpy(), square=True)
        return values.T if over_rows else values
    noisy = role == "grad_output" and not rule.disable_stochastic_rounding
    turns = product == "wgrad" and not rule.disable_rht
    return values_of_codes(
        rule,
        x.numpy(),
        along_columns=over_rows,
        rotation_seed=seed if turns else None,
        noise_seed=seed if noisy else None,
    )


def linear(rule, x, weight, bias, grad, seed):
    """As oracle.linear, with the random numbers of a seed."""

    def product(name, left, right):
        (a_role, a), (b_role, b) = left, right
        first, second = operand(rule, a, a_role, name, seed), operand(rule, b, b_role, name, seed)
        return oracle.product(first, second.T, first.shape[1])

    output, bound = product("fprop", ("input", x), ("weight", weight))
    return {
        "output": (output + bias.double(), bound + 2.0**-23 * (output.abs() + bias.abs())),
        "input": product("dgrad", ("grad_output", grad), ("weight", weight)),
        "weight": product("wgrad", ("grad_output", grad), ("input", x)),
        "bias": (grad.double().sum(0), (len(x) + 8) * 2.0**-24 * grad.double().abs().sum(0)),
    }
