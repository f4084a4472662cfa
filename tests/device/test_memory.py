"""Errors that mean that memory ran out, and freed memory that is returned to the operating system."""

import ctypes
import subprocess
import sys

import pytest
import torch

from bertscore_tm.device import memory
from bertscore_tm.device.memory import is_out_of_memory

# Many blocks too small for their own mapping, each followed by a small one that stays.
HOLES = """
import torch
from bertscore_tm.device.memory import return_freed_memory
from examples.research.benchmarks.processes import resident_bytes

blocks = [(torch.ones(20_000), torch.ones(10)) for _ in range(2_000)]
kept = [small for _, small in blocks]
del blocks
before = resident_bytes()
return_freed_memory()
print(before - resident_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_memory_between_blocks_in_use_is_returned():
    result = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(result.stdout) > 100e6  # of 160 MB


def test_other_systems_do_nothing(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: pytest.fail("a library was opened"))
    memory.return_freed_memory()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("a bug"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_errors_of_accelerators_mean_out_of_memory(error, expected):
    assert is_out_of_memory(error) == expected
