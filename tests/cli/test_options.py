"""Options of the commands: help, the options of bert-score, and the signature."""

import re
import subprocess
import sys
from argparse import ArgumentParser
from inspect import Parameter, signature
from typing import get_args, get_type_hints

import pytest

from bertscore_tm import FrozenEncoder
from bertscore_tm.cli import COMMANDS, main
from bertscore_tm.cli.options import add_encoder_arguments
from bertscore_tm.encoder import EncoderOptions
from tests.support.shell import check_error, run_here


@pytest.mark.parametrize("command", ["score c.txt r.txt", "compare a.txt b.txt -r r.txt", "rank c.jsonl -o a.jsonl"])
@pytest.mark.parametrize("flag", ["--idf", "--rescale"])
@pytest.mark.parametrize("file", ["c.txt", "-"])
def test_an_option_never_takes_a_file_given_in_order(capsys, command, flag, file):
    name, *files = command.split()
    printed = run_here(capsys, name, flag, file, *files, exit_code=2)

    check_error(printed, f"argument {flag}: takes no file, got '{file}'. Give {flag}-from {file}, or {flag} after the")


def test_the_options_of_bert_score_are_accepted_and_not_listed(command, folder, capsys):
    old = ["--cand", "hyps.txt", "--ref", "refs.txt", "more.txt", "--num_layers", "1", "--batch_size", "2", "-s"]
    new = ["-c", "hyps.txt", "-r", "refs.txt", "more.txt", "-l", "1", "-b", "2", "--per-segment"]
    baseline = ["--rescale_with_baseline", "--baseline_path", "baseline.csv", "--lang", "en-us"]

    printed = command(*old, *baseline, "--nthreads", "4")

    assert printed.out == command(*new, "--language", "en-us", "--rescale-from", "baseline.csv").out
    assert printed.err == "bertscore-tm: warning: --nthreads: no effect here. Remove unused options\n"
    with pytest.raises(SystemExit):
        main(["score", "--help"])

    listed = capsys.readouterr().out
    assert not [name for name in ("seg_level", "--num_layers", "--cand ", "nthreads") if name in listed]


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_command_has_help_of_80_columns(capsys, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "80")

    with pytest.raises(SystemExit, match="0"):
        main(arguments)

    printed = capsys.readouterr().out
    assert "usage: bertscore-tm" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_signature_options_and_shell_agree():
    """``FrozenEncoder``, the types for ``**options`` and the shell have the same options, values and defaults."""
    keywords = {
        name: parameter.default
        for name, parameter in signature(FrozenEncoder).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    types = get_type_hints(EncoderOptions)

    assert list(types) == list(keywords)

    hints = get_type_hints(FrozenEncoder.__init__)
    assert types == {name: hints[name] for name in keywords}

    documented = re.findall(r"^ {8}(\w+): ", FrozenEncoder.__doc__.partition("Attributes:")[0], re.MULTILINE)
    assert documented == ["model", "tokenizer", *keywords]

    parser = ArgumentParser()
    add_encoder_arguments(parser)
    flags = {action.dest: action for action in parser._actions if action.dest in keywords}

    assert list(flags) == [name for name in keywords if name not in ("all_layers", "forward_fn")]
    assert {name: action.default for name, action in flags.items()} == {name: keywords[name] for name in flags}
    assert tuple(flags["long_text"].choices) == get_args(types["long_text"])

    precisions, _ = get_args(types["dtype"])
    assert tuple(flags["dtype"].choices) == get_args(precisions)


def test_the_options_of_the_shell_import_no_torch():
    program = "import sys, bertscore_tm.cli.options; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)
