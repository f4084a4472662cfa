"""What the pages give for several processes does on two what it does on one."""

import re
import warnings
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from examples.programs import docstrings, lightning_metric
from tests.support import lightning_runs as runs
from tests.support.markdown_blocks import ROOT, blocks, same_output
from tests.support.ranks import on_ranks, results
from tests.support.texts import stdlib_pairs

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

LOSSES = [0.1, 0.4, 0.9, 0.3, 0.8]


def python_blocks(name):
    return [block for block in blocks(ROOT / "examples" / "docs" / name) if block.language == "python"]


def run_distributed_page():
    """Run the page with two devices in the place of one, and return its names and what its block of Fabric printed."""
    names = {"__name__": "page"}
    printed = {}
    for block in python_blocks("distributed.md"):
        printed[block.content] = replace(block, content=block.content.replace("devices=1", "devices=2")).run(names)
    (of_fabric,) = (text for content, text in printed.items() if "fabric.print" in content)
    return names, of_fabric


class Mean(pl.LightningModule):
    """Logs means over the batches with ``sync_dist``."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", batch["loss"].mean(), sync_dist=True, batch_size=len(batch["loss"]))


def validated(rank, folder, module, losses):
    """Return the logged loss of ranks with unequal numbers of batches, and of texts in them."""
    loader = DataLoader([{"loss": loss} for loss in (losses[:3], losses[3:])[rank]], batch_size=2)
    run = runs.trainer(folder, devices=2, strategy=runs.strategy_on_cpu("ddp"), use_distributed_sampler=False)
    (logged,) = run.validate(module, loader, verbose=False)
    return logged["val_loss"]


def run_metric_program():
    """Train with the program on this rank and few pairs, and return what it printed and its warnings."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(docstrings, "collect_pairs", lambda packages: stdlib_pairs()[::10])
        with warnings.catch_warnings(record=True) as warned:
            lightning_metric.main(["--steps", "2", "--devices", "2"])
    messages = [str(warning.message) for warning in warned]
    # Lightning recommends sync_dist for values that the metric has gathered from all ranks already.
    return printed.getvalue(), [message for message in messages if "sync_dist=True" not in message]


def cases_on_ranks(rank, folder):
    yield "metric program", run_metric_program
    names, printed = run_distributed_page()
    yield "fabric", lambda: (names["fabric"].world_size, printed, names["metric"].compute()["f1"].item())
    yield "page", lambda: validated(rank, folder, names["Validation"](), LOSSES)
    yield "sync_dist", lambda: validated(rank, folder, Mean(), [0.5] * 5)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Results of each case on two ranks."""
    return on_ranks(cases_on_ranks, tmp_path_factory.mktemp("page"))


def test_fabric_scores_on_two_ranks_as_on_one(reports):
    (output,) = (block.output for block in python_blocks("distributed.md") if "fabric.print" in block.content)
    first, second = results(reports, "fabric")

    assert same_output(output, first[1])
    assert (first[0], second) == (2, (2, "", first[2]))


def test_the_logged_loss_is_the_mean_over_both_ranks_texts(reports):
    assert results(reports, "page") == [pytest.approx(torch.tensor(LOSSES).mean().item(), abs=1e-6)] * 2


def test_a_mean_with_sync_dist_is_what_the_page_says(reports):
    assert results(reports, "sync_dist") == [0.625, 0.625]


def test_the_metric_program_prints_one_line_for_both_ranks(reports):
    (printed, warned), (printed_by_other, warned_by_other) = results(reports, "metric program")

    assert re.findall(r"^step (\d): precision \d\.\d{3}", printed, re.MULTILINE) == ["1", "2"]
    assert printed_by_other == ""
    assert warned + warned_by_other == []
