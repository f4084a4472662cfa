"""Errors of commands: one line, and bugs are not hidden."""

import re
from unittest.mock import Mock

import pytest

from bertscore_tm.cli import main
from tests.support.shell import check_error, run_here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-l", "9"], "num_layers (--num-layers) 9 is not one of the layers 0 to"),
        ([], "no tuned layer is published for"),
        (["-l", "1", "-m", "nowhere"], "could not load the configuration of 'nowhere'"),
        (["-l", "1", "--rescale"], "no baseline for language 'en' and model"),
        (["-l", "1", "--rescale-from", "no.csv"], "no.csv: No such file or directory"),
        (["-l", "1", "--rescale-from", "hyps.txt"], "baseline table hyps.txt must start with the header"),
        (
            ["-m", "nowhere", "--rescale-from", "hyps.txt"],
            "baseline table hyps.txt must start with the header LAYER,P,",
        ),
        (
            ["-m", "nowhere", "--listed-as", "robert"],
            "no tuned layer is published for 'robert': listed_as (--listed-as) must be ",
        ),
        (["-l", "1", "--max-length", "6", "--long-text", "error"], "the text "),
    ],
)
def test_errors_are_one_line(command, arguments, message):
    printed = command("-c", "hyps.txt", "-r", "refs.txt", *arguments, exit_code=2)
    check_error(printed, f"^{re.escape(message)}")


def test_an_interrupt_prints_one_line(monkeypatch, capsys):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=KeyboardInterrupt))
    assert run_here(capsys, "score", exit_code=130) == ("", "bertscore-tm: interrupted\n")


def test_bugs_are_not_hidden(monkeypatch):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["score"])
