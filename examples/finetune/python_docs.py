"""Writes a small set of chats from the documentation strings of Python's standard library: what does a function do?

    python examples/finetune/python_docs.py chats.jsonl

Each reply is a signature as code and the first paragraph of the documentation, so a model that has learned them answers in that form.
The strings are those of the Python that runs this: copyright Python Software Foundation, Python Software Foundation License Version 2
(https://docs.python.org/3/license.html), which covers the file that is written, too."""

import argparse
import importlib
import inspect
import json
import pathlib
import random
import re

MODULES = (
    "abc argparse array ast base64 bisect calendar codecs collections configparser contextlib copy csv datetime decimal difflib dis email enum "
    "fractions functools glob gzip hashlib heapq html http inspect io ipaddress itertools json locale logging math mimetypes operator os pathlib "
    "pickle platform pprint queue random re sched secrets shelve shlex shutil signal socket sqlite3 statistics string struct subprocess tarfile "
    "tempfile textwrap threading time timeit tokenize traceback types typing unicodedata unittest urllib.parse uuid warnings weakref zipfile zlib"
).split()
QUESTIONS = ("What does {} do?", "Explain {} in Python.", "How do I use {}?", "What is {} for?")


def public_members(module):
    for name in sorted(getattr(module, "__all__", None) or dir(module)):
        member = getattr(module, name, None)
        if not name.startswith("_") and (inspect.isroutine(member) or inspect.isclass(member)):
            yield name, member


def signature_of(name, member):
    try:
        parameters = str(inspect.signature(member))
    except (TypeError, ValueError):
        return name
    parameters = re.sub(r"<function (\w+) at 0x[^>]*>", r"\1", parameters)
    return name if " at 0x" in parameters else name + re.sub(r" -> .*$", "", parameters)


def chats(count, seed):
    rng, found = random.Random(seed), []
    for path in MODULES:
        module = importlib.import_module(path)
        for short, member in public_members(module):
            name, text = f"{path}.{short}", inspect.getdoc(member) or ""
            words = " ".join(text.split("\n\n")[0].split())
            if 40 <= len(words) <= 400 and words.endswith(".") and not words.startswith(short + "("):
                reply = f"```python\n{signature_of(name, member)}\n```\n{words}"
                question = rng.choice(QUESTIONS).format(f"`{name}`")
                found.append({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]})
    rng.shuffle(found)
    return found[:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="FILE.jsonl")
    parser.add_argument("--count", type=int, default=120, help="chats at most")
    parser.add_argument("--seed", type=int, default=1, help="of the questions and of the order")
    arguments = parser.parse_args()
    lines = [json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats(arguments.count, arguments.seed)]
    arguments.out.write_text("".join(lines), encoding="utf-8")
    print(f"{arguments.out}: {len(lines)} chats from the documentation strings of Python, PSF License Version 2")


if __name__ == "__main__":
    main()
