"""Errors of commands: one line, and bugs are not hidden."""

from unittest.mock import Mock

import pytest

from bertscore_tm.cli import main
from tests.support.shell import run_here
from tests.support.shell_cases import ShellCase, check_case

FILES = {"c.txt": "a cat sat\nit rains\n", "r.txt": "the cat\nrain\n"}
NO_HEADER = "baseline table c.txt must start with the header LAYER,P,..."
# Options of the command that scores the files with the real model, and the error.
BAD_OPTIONS = [
    ("-l 9", "num_layers (--num-layers) 9 is not one of the layers 0 to..."),
    ("", "no tuned layer is published for..."),
    ("-l 1 -m nowhere", "could not load the configuration of 'nowhere'..."),
    ("-l 1 --rescale", "no baseline for language 'en' and model..."),
    ("-l 1 --rescale-from no.csv", "no.csv: No such file or directory"),
    ("-l 1 --rescale-from c.txt", NO_HEADER),
    ("-m nowhere --rescale-from c.txt", NO_HEADER),
    ("-m nowhere --listed-as robert", "no tuned layer is published for 'robert': listed_as (--listed-as) must be ..."),
    ("-l 1 --max-length 4 --long-text error", "the text ..."),
]


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS)
def test_an_error_of_the_encoder_is_one_line(tmp_path, capsys, minilm, options, error):
    model = "-m model"
    if "-m " in options:
        model = ""
    case = ShellCase(f"score c.txt r.txt {model} --device cpu {options}", FILES, error=error)

    check_case(case, tmp_path, capsys, minilm)


def test_an_interrupt_prints_one_line(monkeypatch, capsys):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=KeyboardInterrupt))
    assert run_here(capsys, "score", exit_code=130) == ("", "bertscore-tm: interrupted\n")


def test_bugs_are_not_hidden(monkeypatch):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["score"])
