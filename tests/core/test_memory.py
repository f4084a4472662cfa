"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

from bertscore_tm.core import memory as allocation

# Many blocks too small to be mapped on their own, with one that stays at the end of each.
HOLES = """
import torch
from bertscore_tm.core.memory import return_freed_memory
from examples.benchmarks.processes import resident_bytes

blocks = [(torch.ones(20_000), torch.ones(10)) for _ in range(2_000)]
kept = [small for _, small in blocks]
del blocks
before = resident_bytes()
return_freed_memory()
print(before - resident_bytes())
"""


@pytest.mark.skipif(allocation._trim() is None, reason="needs glibc")
def test_memory_between_what_stays_is_returned():
    found = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 100e6  # of 160 MB


def test_other_systems_do_without(monkeypatch):
    allocation._trim.cache_clear()
    monkeypatch.setattr(allocation.sys, "platform", "darwin")
    allocation.return_freed_memory()
    assert allocation._trim() is None
    allocation._trim.cache_clear()
