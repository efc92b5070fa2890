"""Writes a JSON file whole or not at all."""

import json
from pathlib import Path


def write(path, document):
    beside = Path(path + ".part")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(path)
