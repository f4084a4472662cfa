"""Switches of the process: the last thread that leaves one restores its value."""

from contextlib import ExitStack

import pytest
import torch
from transformers.utils import logging as transformers_logging

from bertscore_tm.device.precision import exact_products, may_use_tf32
from bertscore_tm.encoder.loading import quiet_transformers


@pytest.mark.parametrize("name", ["TF32", "verbosity"])
def test_the_last_to_leave_a_switch_restores_it(name):
    """Enter A, enter B, leave A, leave B."""
    switch, read, write = {
        "TF32": (
            exact_products,
            lambda: may_use_tf32(torch.device("cuda")),
            lambda: torch.set_float32_matmul_precision("high"),
        ),
        "verbosity": (quiet_transformers, transformers_logging.get_verbosity, transformers_logging.set_verbosity_info),
    }[name]
    with ExitStack() as restored:
        if name == "TF32":
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        else:
            restored.callback(transformers_logging.set_verbosity, read())
        write()
        before = read()
        first = switch.turned()
        second = switch.turned()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert read() != before
        second.__exit__(None, None, None)
        assert read() == before
