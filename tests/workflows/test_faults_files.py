"""Full disks, damaged files and incomplete models: a clear message, and no result is lost."""

import re
import resource
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.lightning_runs import chooser, trainer, weights
from tests.support.models import EVERY_FAMILY, randomised, save_tiny_model, tiny_config, tiny_tokenizer
from tests.support.shell import run_here, write_lines

WORDS = [f"{a} {b} {c}" for a in ("a cat", "the dog") for b in ("sat", "ran") for c in ("here", "there", "home")]
PAIRS = (WORDS[:9], WORDS[3:])
PAIR = ["a cat"], ["it rains"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return save_tiny_model("bert", tmp_path_factory.mktemp("tiny"))


@contextmanager
def limit_file_size(size: int) -> Generator[None, None, None]:
    """Limit the size of files in bytes, as on a full disk: the system writes what fits and then fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def command(tiny, tmp_path, capsys):
    """Function that scores two files and returns the printed output."""
    for name, lines in zip(("c.txt", "r.txt"), PAIRS, strict=True):
        write_lines(tmp_path / name, lines)
    files = ["-c", tmp_path / "c.txt", "-r", tmp_path / "r.txt"]
    return partial(run_here, capsys, "score", *files, "-m", tiny, "-l", 2, "--device", "cpu")


def test_full_disk_keeps_the_old_file_and_prints_the_result(command, tmp_path):
    wanted = command("--json").out
    target = tmp_path / "scores.json"
    target.write_text("old content")
    before = sorted(tmp_path.iterdir())

    with limit_file_size(100):
        printed = command("--json", "-o", str(target), exit_code=1)

    assert printed.err == f"bertscore-tm: error: {target}: File too large; the file keeps its old content\n"
    assert printed.out == wanted
    assert target.read_text() == "old content"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_full_standard_output_is_an_error(command, monkeypatch):
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", full)

    printed = command(exit_code=1)

    assert "standard output: No space left on device" in printed.err
    with suppress(OSError):
        full.close()


def test_training_continues_when_samples_cannot_be_written(tiny, tmp_path):
    def train(name: str):
        module = chooser(PAIRS)
        scorer = BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=2)))
        run = trainer(tmp_path / name, [scorer, SampleLogger(3, 0)], logger=CSVLogger(tmp_path / name, version=0))
        run.fit(module)
        return module, run.callback_metrics["val_bertscore_f1"]

    wanted, score = train("enough")
    assert len(list((tmp_path / "enough").rglob("samples/*.csv"))) == 2
    # The metrics of the same logger are smaller.
    with limit_file_size(300), pytest.warns(UserWarning, match="SampleLogger could not write .*/val_samples") as said:
        module, limited_score = train("full")
    messages = [str(warning.message) for warning in said if "SampleLogger" in str(warning.message)]
    assert len(messages) == 2
    assert "File too large; no file was written), and training continues without it" in messages[0]
    assert torch.equal(weights(module), weights(wanted))
    assert torch.equal(limited_score, score)
    assert list((tmp_path / "full").rglob("samples/*")) == []


def half(content: bytes) -> bytes:
    """Return the first half, as of a download that was interrupted."""
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("what", "file", "damage"),
    [
        ("weights", "model.safetensors", half),
        ("weights", "model.safetensors", None),
        ("configuration", "config.json", None),
        ("configuration", "config.json", lambda content: b"<html>Sign in to the network</html>"),
        ("tokenizer", "tokenizer.json", half),
        ("tokenizer", "tokenizer.json", lambda content: b"{}"),
    ],
)
def test_a_damaged_file_is_an_error_with_the_remedy(tiny, tmp_path, what, file, damage):
    path = shutil.copytree(tiny, tmp_path / "model") / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    said = rf"^could not load the {what} of .*model' from that folder\. Pass a name on the hub, or .* The cause: "

    with pytest.raises(OSError, match=said):
        FrozenEncoder(path.parent, num_layers=2).encode(["a cat"])


def test_missing_weights_are_an_error(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for name in ("pooler.dense.weight", "encoder.layer.2.output.dense.weight"):
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    # What is not used may be missing.
    assert torch.equal(encode_cat(folder, 2), encode_cat(tiny, 2))
    with pytest.raises(OSError, match=r"its file lacks 1 of them \(encoder\.layer\.2\.output\.dense\.weight\)"):
        encode_cat(folder, 3)


def encode_cat(folder, num_layers):
    """Return the vectors of a text by the model of a folder."""
    return FrozenEncoder(folder, num_layers=num_layers).encode(["a cat"]).vectors


def add_weights(folder, *names):
    """Add tensors to the file of a model."""
    file = Path(folder) / "model.safetensors"
    tensors = load_file(file)
    for name in names:
        tensors[name] = torch.ones(3, 8)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("family", "module"),
    [
        ("bert", "bert.encoder.layer.2.attention.self"),
        ("roberta", "roberta.encoder.layer.2.attention.self"),
        ("electra", "electra.encoder.layer.2.attention.self"),
        ("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"),
        ("bart", "model.encoder.layers.2.self_attn"),
        ("t5", "encoder.block.2.layer.0.SelfAttention"),
    ],
)
def test_weights_without_a_place_in_the_model_are_an_error(family, module, tmp_path):
    config = tiny_config(family, position_embedding_type="relative_key")
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForMaskedLM
    randomised(auto.from_config(config)).save_pretrained(tmp_path)
    tiny_tokenizer(EVERY_FAMILY[family]).save_pretrained(tmp_path)
    lower, last = encode_cat(tmp_path, 2), encode_cat(tmp_path, 3)
    prefix = module.partition("encoder.")[0]

    # A pooler and heads, another part of the model, a layer above the last one, and what models compute.
    add_weights(tmp_path, "pooler.norm.weight", "cls.norm.weight", "decoder.layers.0.norm2.weight")
    add_weights(tmp_path, f"{prefix}encoder.layer.3.norm2.weight", f"{prefix}embeddings.position_ids")
    add_weights(tmp_path, f"{module}.masked_bias")
    assert torch.equal(encode_cat(tmp_path, 2), lower)
    assert torch.equal(encode_cat(tmp_path, 3), last)

    add_weights(tmp_path, f"{module}.distance_embedding.weight")
    name = re.escape(f"{module}.distance_embedding.weight")
    with pytest.raises(OSError, match=rf"transformers \d+\S* does not use 1 of them \({name}\).*relative_key"):
        encode_cat(tmp_path, 3)
    # The layers of Albert are one module.
    if family != "albert":
        assert torch.equal(encode_cat(tmp_path, 2), lower)


def test_weights_without_a_place_in_the_embeddings_are_an_error(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    add_weights(folder, "embeddings.task_embeddings.weight")

    with pytest.raises(OSError, match=r"does not use 1 of them \(embeddings\.task_embeddings\.weight\)"):
        encode_cat(folder, 1)


# transformers 5 makes a tokenizer without words for these models: any two texts would score 1.
@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_weights_without_their_tokenizer_are_refused(family, tmp_path):
    folder = save_tiny_model(family, tmp_path / "model")
    assert bert_score(*PAIR, FrozenEncoder(folder, num_layers=1))["f1"].item() < 1
    for file in (tmp_path / "model").glob("*token*"):
        file.unlink()

    with pytest.raises(OSError, match=r"^could not load the tokenizer of '.*model'") as caught:
        bert_score(*PAIR, FrozenEncoder(folder, num_layers=1))

    assert "save_pretrained(folder)" in str(caught.value)


def test_a_given_tokenizer_without_vocabulary_is_refused(tmp_path, minilm):
    AutoConfig.from_pretrained(minilm).save_pretrained(tmp_path)
    empty = AutoTokenizer.from_pretrained(tmp_path)

    with pytest.raises(ValueError, match="tokenizer has special tokens only: it was loaded from a folder without the"):
        FrozenEncoder(minilm, empty, num_layers=1)


def test_a_token_without_an_embedding_is_named(tmp_path):
    folder = save_tiny_model("bert", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = AutoConfig.from_pretrained(folder).vocab_size
    num_added = size - len(tokenizer) + 1
    tokenizer.add_tokens([f"<term{i}>" for i in range(num_added)])
    tokenizer.save_pretrained(folder)
    last = tokenizer.convert_ids_to_tokens(size)
    encoder = FrozenEncoder(folder, num_layers=1)

    # Other texts are scored.
    assert bert_score(*PAIR, encoder)["f1"].item() < 1
    with pytest.raises(ValueError, match=rf"^token {size} \('{last}'\) has no embedding, .* embeddings of {size}\."):
        bert_score([f"a {last}"], ["a cat"], encoder)


@pytest.mark.parametrize(
    "use",
    [
        BERTScore,
        BERTScoreReward,
        SoftBERTScoreLoss,
        lambda metric: bert_score(*PAIR, metric),
        lambda metric: rank_candidates([["a cat", "it rains"]], encoder=metric),
    ],
)
def test_a_metric_in_place_of_its_encoder_is_named(encoder, use):
    with pytest.raises(TypeError, match=r"got a bertscore_tm\..*\.BERTScore\. Pass .* the \.encoder of a metric"):
        use(BERTScore(encoder))
