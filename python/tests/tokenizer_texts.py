"""Texts for tokenizer_test.py: random ones of many kinds, the same for the same seed, and real ones of the standard library."""

import pathlib
import random
import sysconfig
import unicodedata
from collections.abc import Sequence

# Unicode as the libraries that we link know it ends with version 14, as Python 3.11's does: what was assigned later is left out.
ASSIGNED = [
    code
    for code in range(1, 0x110000)
    if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn" and unicodedata.unidata_version <= "14.0.0"
] or [code for code in range(1, 0x3000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
POOLS = [
    "".join(map(chr, range(0x20, 0x7F))),
    "0123456789 .,-+eE",
    " \t\n\r\u00a0\u2003\u3000\u200b\u0085\u180e\x0b\x0c\x1c",
    "".join(map(chr, [*range(0xC0, 0x250), *range(0x1E00, 0x1F00)])),
    "abceinosuyAEIOU" + "".join(map(chr, range(0x300, 0x345))),
    "".join(map(chr, range(0x400, 0x460))),
    "".join(map(chr, [*range(0x4E00, 0x4F00), *range(0x3041, 0x3100), 0x3002, 0xFF0C])),
    "".join(map(chr, [*range(0xAC00, 0xAC80), *range(0x1100, 0x1176), *range(0x11A8, 0x11C2)])),
    "".join(map(chr, [*range(0x621, 0x64B), *range(0x64B, 0x660), *range(0x660, 0x66A)])),
    "".join(map(chr, [*range(0x904, 0x93A), *range(0x93E, 0x94D), 0x94D, *range(0x966, 0x970)])),
    "\U0001f600\U0001f469\u200d\U0001f4bb\U0001f3fd\ufe0f\u2764\U0001f1e9\U0001f1ea\u20e3#1",
    "<0x>1AFaf \u2581_\u0120\u010a\u00ad\u00a1",
]
PIECES = [
    "'s",
    "'S",
    "'\u017f",
    "don't",
    "WE'LL",
    "'re",
    "I'd've",
    "  ",
    "\n\n",
    "\r\n",
    "   x",
    " \n ",
    "1234567",
    "3.14",
    "x=1;",
    "\u2581\u2581",
]


def standard_library() -> list[str]:
    """Files of Python's standard library, sorted by name."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = sorted([*folder.glob("*.py"), *folder.glob("json/*.py"), *folder.glob("email/*.py"), *folder.glob("encodings/*.py")])
    return [path.read_text(encoding="utf-8", errors="ignore") for path in paths]


def python_source(characters: int = 6000) -> str:
    """The beginning of these files, one after another."""
    return "\n".join(standard_library())[:characters]


def random_text(rng: random.Random, files: list[str], words: Sequence[str]) -> str:
    """A text of one of the kinds, or a mixture. `words`: special tokens and others to put in."""
    kind = rng.randrange(8)
    length = min(int(rng.expovariate(1 / 12)), 200)
    if kind == 0:
        return "".join(chr(rng.choice(ASSIGNED)) for _ in range(length))
    if kind in (1, 2):
        return "".join(rng.choices(rng.choice(POOLS), k=length))
    if kind in (3, 4):
        file = rng.choice(files)
        begin = rng.randrange(max(len(file), 1))
        return file[begin : begin + 4 * length]
    if kind == 5:
        return "".join(rng.choice(PIECES) if rng.random() < 0.5 else rng.choice(rng.choice(POOLS)) for _ in range(length))
    if kind == 6 and words:
        return "".join(rng.choice(words) + rng.choice(["", "", " ", "  ", "\n", "a", "_", "\u00e9"]) for _ in range(length // 3))
    return "".join(random_text(rng, files, words) for _ in range(2)) if length > 6 else rng.choice(PIECES)


def random_texts(count: int, seed: int, words: list[str]) -> list[str]:
    rng, files = random.Random(seed), standard_library()
    return [random_text(rng, files, words) for _ in range(count)]
