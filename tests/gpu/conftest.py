"""Puts the package of this clone first. PLIMSOLL_BUILD: a build with PLIMSOLL_CUDA=ON. Nothing here runs without a card."""

import os
import sys
from pathlib import Path

import pytest

os.environ["PLIMSOLL_CUDA_UNVERIFIED"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import plimsoll  # noqa: F401  registers the operators
import torch


@pytest.fixture(autouse=True)
def card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(1)
