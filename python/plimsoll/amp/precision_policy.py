"""docs/precision_policy.md from the table of the library: python -m plimsoll.amp.precision_policy."""

import torch

_TITLES = {
    "narrow": ("In autocast's dtype", "Matrix products and what is one inside."),
    "fp32": ("In fp32", "What overflows in 16 bits, or loses what it sums up."),
    "widest": ("In the widest dtype of the inputs", "What wants all its inputs in one dtype."),
}
_HEAD = """# Precision under autocast

Generated: `.venv/bin/python -m plimsoll.amp.precision_policy > docs/precision_policy.md`.
The table is `plimsoll/amp/precision_table.cpp`, one for CPU and CUDA. An operator marked with + is left by torch's own CPU autocast to whatever
dtypes come; inside `plimsoll.amp.autocast` and `amp::Autocast` it is not. Operators that are not here run in the dtypes of their inputs, but
torch's CPU list goes on (padding, pooling, `fft_*` and `linalg_*` in fp32; `cat`, `stack` and `index_copy` in the widest).
FP64 stays FP64 everywhere, and a `dtype=` that the caller gives is kept. On CUDA, torch 2.11 leaves `rms_norm` to whatever dtypes come.
"""


def table() -> list[tuple[str, str, bool]]:
    """(operator of aten, "narrow", "fp32" or "widest", whether torch's CPU autocast lacks it)."""
    ops, precisions, mended = torch.ops.plimsoll.precision_table()
    return list(zip(ops, precisions, mended, strict=True))


def markdown() -> str:
    parts = [_HEAD]
    for precision, (title, why) in _TITLES.items():
        names = [f"`{op}`{' +' if lacks else ''}" for op, of, lacks in table() if of == precision]
        parts.append(f"## {title}\n{why}\n\n" + ",\n".join(names) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
