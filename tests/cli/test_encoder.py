"""The encoder of a command: its idf, its device, and options read from a hash."""

import json
import re

import pytest
import torch
from bert_score.utils import get_hash

from bertscore_tm.cli.encoder import choose_device, read_idf
from bertscore_tm.encoder import default_device
from tests.support.models import tiny_model
from tests.support.scored_files import COUNT
from tests.support.shell import check_error, run_here


def test_each_rank_uses_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # As where the device exists.
    empty = torch.empty(0)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: empty)

    assert choose_device(None) == torch.device("cuda:0")

    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(None) == choose_device("cuda") == torch.device("cuda:1")
    assert choose_device("cuda:0") == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")


def test_the_suffix_of_the_idf_file_decides_its_format(tmp_path):
    (tmp_path / "idf.dat").write_text("a cat\n")
    (tmp_path / "idf.jsonl").write_text('{"text": "a dog"}\n')

    read = [read_idf(str(tmp_path / f"idf.{suffix}"), "txt") for suffix in ("dat", "jsonl")]

    assert read == [["a cat"], ["a dog"]]


def test_the_idf_of_references_or_of_a_file(command):
    files = ["hyps.txt", "refs.txt", "-l", "1"]

    assert command("-c", "hyps.txt", "-r", "refs.txt", "-l", "1", "--idf").out == command(*files, "--idf").out

    of_file = command("--idf-from", "more.txt", *files).out
    assert of_file == command(*files, "--idf-from", "more.txt").out
    assert f"|idf:{COUNT}" in of_file.splitlines()[-1]
    check_error(command(*files, "--idf", "--idf-from", "more.txt", exit_code=2), "not allowed with argument --idf")


@pytest.fixture(scope="module")
def listed_folder(tmp_path_factory):
    """A tiny model with a published layer and baseline: its configuration names another one as its origin."""
    folder = tmp_path_factory.mktemp("listed") / "model"
    model, tokenizer = tiny_model("bert", layers=6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "config.json"
    configuration = json.loads(path.read_text()) | {"_name_or_path": "distilbert-base-uncased"}
    path.write_text(json.dumps(configuration))
    return str(folder)


OWN_IDF = "Publish the signature of these"
OTHER_IDF = "If its idf counted other texts than the references, pass them with --idf-from FILE"
# Layer, idf and rescaling of a hash, the options that it gives, and the remedy of the warning.
HASHES = [
    (5, False, False, [], OWN_IDF),
    (3, True, False, ["--idf"], OTHER_IDF),
    (5, False, True, ["--rescale"], OWN_IDF),
]


@pytest.mark.parametrize("words", ["score hyps.txt refs.txt", "compare hyps.txt more.txt -r refs.txt"])
@pytest.mark.parametrize(("layer", "idf", "rescale", "flags", "remedy"), HASHES)
def test_a_hash_of_the_reference_package_gives_the_options(
    folder, listed_folder, monkeypatch, capsys, words, layer, idf, rescale, flags, remedy
):
    monkeypatch.chdir(folder)
    command = [*words.split(), "--device", "cpu"]
    text = get_hash(listed_folder, layer, idf, rescale, False, False)
    expected = run_here(capsys, *command, "-m", listed_folder, "-l", layer, *flags)
    assert expected.err == ""

    for option in ("--hash", "--model"):
        printed = run_here(capsys, *command, option, text)

        assert printed.out == expected.out
        said = f"published scores of {text} may differ from these, which do not use its versions. {remedy}"
        assert printed.err == f"bertscore-tm: warning: {said}\n"


def test_an_invalid_hash_shows_a_valid_one(command, minilm):
    given = ["hyps.txt", "refs.txt", "-m", minilm, "-l", "0"]
    printed = command(*given, "--hash", "garbage", exit_code=2)

    check_error(printed, "^argument --hash: 'garbage' is not a hash of bert-score, .*. Give one such as ")

    (example,) = re.findall(r"Give one such as (\S+)", printed.err)
    assert "published scores of" in command(*given, "--hash", example).err


def test_options_next_to_a_hash_come_first(command, folder, minilm, capsys):
    text = get_hash("roberta-large", 17, True, False, False, False)
    given = ["hyps.txt", "refs.txt", "-l", "0", "--idf-from", "more.txt"]

    printed = command(*given, "--hash", text)  # with the folder of the model

    assert printed.out == command(*given).out
    assert printed.err.endswith("Publish the signature of these\n")
    check_error(
        run_here(capsys, "baseline", folder / "refs.txt", "-m", text, "-o", folder / "t.csv", exit_code=2),
        "is a hash, not",
    )


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "xpu", "hpu", "meta", "abacus"])
def test_a_device_that_is_not_here_is_an_error_with_the_remedy(command, device):
    kind = device.partition(":")[0]
    if kind in ("cuda", "mps", "xpu") and torch.get_device_module(kind).is_available():
        pytest.skip(f"{kind} is here")
    printed = command("-c", "hyps.txt", "-r", "refs.txt", "-l", "1", "--device", device, exit_code=2)

    remedy = f"Remove --device to use {default_device()}"

    check_error(printed, rf"^argument --device: '{device}' cannot be used here: .{{10,300}}. {remedy}$")
