"""The benchmarks measure what they say, and what they measure stays within the limits."""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable
from itertools import chain, product

import pytest
import torch
import torch.distributed as dist

from bertscore_tm import BERTScore
from examples.benchmarks.encoders import CountingEncoder, Counts, MadeUpEncoder
from examples.benchmarks.metric import __main__ as command
from examples.benchmarks.metric.collection import COLUMNS, SETTINGS, compare_collection
from examples.benchmarks.metric.epochs import changing_candidates, run_epochs
from examples.benchmarks.metric.memory import growth_of_state, state_bytes
from examples.benchmarks.metric.traffic import Wire, counted_collectives, traffic_of_compute
from examples.benchmarks.processes import resident_bytes, run_fresh, run_ranks
from examples.benchmarks.tables import table
from examples.benchmarks.times import Times
from examples.docstrings import DocstringPair
from tests.support.texts import real_pairs

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.usefixtures("one_thread")]

MEBIBYTE = 2**20
VOCABULARY = 30_522
PAIRS = 20


def test_made_up_vectors_are_as_an_encoder_gives_them(encoder):
    made_up = MadeUpEncoder(tokens=(5, 9))
    texts = ["a cat", "a dog", "a bird"] * 20
    found, real = made_up.encode(texts), encoder.encode(texts)
    for name in ("vectors", "ids", "lengths", "has_content", "truncated"):
        assert getattr(found, name).dtype == getattr(real, name).dtype
        assert getattr(found, name).ndim == getattr(real, name).ndim
    assert {*found.lengths.tolist()} == {5, 6, 7, 8, 9}
    assert len(found.ids) == found.vectors.shape[1] == found.lengths.sum()
    torch.testing.assert_close(found.vectors.norm(dim=-1), torch.ones(1, len(found.ids)))
    cls, sep = real.ids[0], real.ids[real.lengths[0] - 1]
    assert (found.ids[found.offsets] == cls).all()
    assert (found.ids[found.offsets + found.lengths - 1] == sep).all()
    assert made_up.counts == Counts(1, 60, len(found.ids))
    # Another rank has other texts.
    assert not torch.equal(MadeUpEncoder((5, 5), seed=1).encode(texts).ids, MadeUpEncoder((5, 5)).encode(texts).ids)


def test_counts_what_is_encoded(minilm):
    counting = CountingEncoder(minilm, num_layers=1)
    counting.encode(["a cat", "hello"])
    before = counting.counts
    counting.encode(["a cat sat"])
    assert before == Counts(1, 2, 4 + 3)
    assert counting.counts - before == Counts(1, 1, 5)


def test_resident_memory_follows_what_is_written():
    before = resident_bytes()
    block = mmap.mmap(-1, 64 * MEBIBYTE)
    reserved = resident_bytes()
    block.write(b"x" * 32 * MEBIBYTE)
    written = resident_bytes()
    block.close()
    freed = resident_bytes()
    assert reserved - before < 8 * MEBIBYTE
    assert 24 * MEBIBYTE < written - reserved < 72 * MEBIBYTE
    assert freed < written - 24 * MEBIBYTE


def test_state_bytes_counts_whole_storages(encoder):
    metric = BERTScore(encoder, reduction="none")
    empty = state_bytes(metric)
    assert empty == metric.totals.nbytes + metric.num_truncated.nbytes + metric.fingerprint.nbytes
    metric.scores = [torch.zeros(1000)[:3], torch.zeros(3)]
    assert state_bytes(metric) == empty + 4000 + 12


@pytest.fixture(scope="module")
def run_command(tmp_path_factory, one_thread, docstring_pairs) -> Callable[..., dict]:
    """Return a function that runs the command at its smallest size and returns the figures it writes."""

    def run(*measurements: str) -> dict:
        path = tmp_path_factory.mktemp("benchmarks") / "figures.json"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(command, "collect_pairs", lambda packages, include_stdlib: docstring_pairs)
            command.main([*measurements, "--pairs", str(PAIRS), "--repeats", "1", "--json", str(path)])
        return json.loads(path.read_text())

    return run


@pytest.fixture(scope="module")
def figures(run_command) -> dict:
    """Return the figures of three measurements."""
    return run_command("memory", "traffic", "epochs")


def test_memory_stays_within_its_limits(figures):
    records = figures["memory"]
    assert {(record["kind"], record["indices"], record["batch_size"]) for record in records} == {
        *product(("mean", "none", "idf"), (False, True), (1, 32))
    }
    for record in records:
        num_pairs, num_tokens = record["pairs"], record["tokens"]
        assert num_pairs == PAIRS // (10 if record["batch_size"] == 1 else 1)
        assert 2 * 20 <= num_tokens / num_pairs <= 2 * 60
        limit = 32 * num_pairs + (8 * num_tokens if record["kind"] == "idf" else 0)
        assert record["limit"] == limit
        assert record["state"] <= limit
        assert record["state_per_pair"] == record["state"] / num_pairs
        assert record["over_limit"] == record["process"] / limit - 1
        # What the state cannot do without: an id of two bytes and a similarity per token, or three scores per pair.
        least = 6 * num_tokens if record["kind"] == "idf" else 0
        if record["kind"] == "none" or (record["kind"] == "mean" and record["indices"]):
            least = 12 * num_pairs
        assert record["state"] >= least + 8 * num_pairs * record["indices"]
        assert record["state"] == 0 or least > 0


def test_the_process_grows_with_its_state():
    record = growth_of_state("idf", False, 32, 2_000, tokens=(100, 200))
    assert record["state"] > 3 * MEBIBYTE
    assert record["process"] > record["state"] / 2


def test_traffic_grows_with_pairs_and_never_with_tokens(figures):
    records = figures["traffic"]
    for small, large in zip(records[::2], records[1::2], strict=True):
        assert (small["pairs"], large["pairs"]) == (PAIRS // 10, PAIRS)
        kept = small["kind"] in ("none", "idf")
        per_pair = (3 * 4 if kept else 0) + (8 if small["indices"] else 0)
        vocabulary = 8 * (VOCABULARY + 1) if small["kind"] == "idf" else 0
        for record in (small, large):
            assert record["sent_per_pair"] == per_pair
            assert record["received"] == record["sent"]
            assert record["vocabulary"] == vocabulary
            assert record["sent_otherwise"] == record["sent"] - per_pair * record["pairs"] / 2
            assert vocabulary <= record["sent_otherwise"] < vocabulary + 500
            assert record["calls"] <= 12
    longer = traffic_of_compute("idf", False, (PAIRS // 10, PAIRS), tokens=(100, 120))
    [same] = [record for record in records if record["kind"] == "idf" and record["calls"] == longer[1]["calls"]][1:]
    assert longer[1]["tokens"] > 2 * same["tokens"]
    assert longer[1]["sent"] == same["sent"]


def exchange(rank: int) -> tuple:
    """Known bytes through each collective that is counted, and one that is not."""
    original = dist.all_gather
    with counted_collectives() as wire:
        dist.barrier()
        everyones = [torch.zeros(5, dtype=torch.int64) for _ in range(3)]
        dist.all_gather(everyones, torch.full((5,), rank))
        total = torch.ones(7, dtype=torch.float32)
        dist.all_reduce(total)
        with pytest.raises(RuntimeError, match=r"torch\.distributed\.broadcast was called"):
            dist.broadcast(total, 0)
    dist.all_reduce(total)
    assert dist.all_gather is original
    return wire, [one[0].item() for one in everyones], total[0].item()


def test_counts_bytes_of_collectives():
    for wire, ranks, total in run_ranks(exchange, 3):
        assert wire == Wire(calls=3, sent=40 + 28, received=2 * 40 + 28, added=28)
        assert ranks == [0, 1, 2]
        assert total == 9


def fail(message: str) -> None:
    raise KeyError(message)


def test_errors_come_out_of_processes():
    with pytest.raises(KeyError, match="something is wrong"):
        run_fresh(fail, "something is wrong")


def encoded_per_batch(candidates: list[str], references: list[str], epoch: int, encoder: CountingEncoder) -> list[str]:
    """The slow obvious way: what is left to encode of each batch when earlier batches' references are known."""
    left = []
    known: set[str] = set() if epoch == 0 else set(references)
    for start in range(0, len(candidates), 32):
        batch = slice(start, start + 32)
        left += sorted(set(references[batch]) - known) + sorted(set(candidates[batch]) - set(references[batch]))
        known |= set(references[batch])
    return left


def test_epochs_encode_new_candidates_only(minilm):
    preds, target = ([" ".join(text.split()[:5]) for text in side] for side in real_pairs(40))
    # References that come twice in a batch and in another; candidates that repeat, and that equal a reference.
    target[1] = target[33] = target[0]
    candidates = [preds, [target[5], *preds[1:20], preds[19], *preds[:19]], [*preds[:20], *preds[:20]]]
    candidates.append(candidates[-1])
    encoder = CountingEncoder(minilm, num_layers=1)
    records = run_epochs(encoder, candidates, target, repeats=2)
    for epoch, (texts, record) in enumerate(zip(candidates, records, strict=True)):
        left = encoded_per_batch(texts, target, epoch, encoder)
        assert record["texts_cached"] == len(left)
        assert record["tokens_cached"] == sum(map(len, encoder.tokenizer(left).ids))
        batches = [{*texts[:32], *target[:32]}, {*texts[32:], *target[32:]}]
        assert record["texts_uncached"] == sum(map(len, batches))
        assert record["tokens_uncached"] == sum(map(len, encoder.tokenizer(list(chain(*batches))).ids))
        assert record["difference"] < 1e-6
        assert record["same_candidates"] == (epoch == 3)
        assert record["change"] == (0 if epoch == 3 else None)
        assert record["wall_ratio"] > 0
        assert record["cpu_ratio"] > 0
        tokens = sum(map(len, encoder.tokenizer(list({*target})).ids))
        assert record["vector_bytes"] == tokens * 384 * 4 <= record["cache_bytes"]


def test_epochs_of_the_command(figures):
    records = figures["epochs"]
    assert [record["same_candidates"] for record in records] == [False, False, False, True]
    assert records[0]["texts_cached"] == records[0]["texts_uncached"] == 2 * PAIRS
    for record in records[1:]:
        assert record["texts_cached"] == PAIRS
        assert record["texts_uncached"] == 2 * PAIRS
    assert [record["change"] for record in records] == [None, None, None, 0]
    assert all(record["difference"] < 1e-6 for record in records)


def test_candidates_move_on():
    pair = DocstringPair("one two three four five six seven", "these are three", "module")
    assert changing_candidates([pair], 3) == [["one two three"], ["two three four"], ["three four five"]]


def test_a_collection_encodes_once_for_all(minilm):
    preds, target = ([" ".join(text.split()[:5]) for text in side] for side in real_pairs(40))
    together, *alone = compare_collection(minilm, preds, target, repeats=1)
    assert together["calls"] == 2
    assert together["texts"] == 80
    assert together["tokens"] == sum(map(len, CountingEncoder(minilm, num_layers=1).tokenizer([*preds, *target]).ids))
    assert together["wall_ratio"] == together["cpu_ratio"] == 1
    assert [record["updated"] for record in alone] == ["alone", "alone, cut"]
    for record in alone:
        assert record["metrics"] == together["metrics"] == len(SETTINGS) == 5
        for name in ("calls", "texts", "tokens"):
            assert record[name] == 5 * together[name]
        assert record["difference"] < 1e-6


def test_command_prints_the_figures_that_it_writes(run_command, capsys):
    figures = run_command("collection")
    machine, *_, heading, together, alone, cut = capsys.readouterr().out.splitlines()
    assert list(figures) == ["machine", "collection"]
    assert machine.startswith(f"processors {figures['machine']['processors']}, threads 1, torch {torch.__version__}")
    assert heading.replace(" ratio", "_ratio").split() == list(COLUMNS)
    for line, record in zip((together, alone, cut), figures["collection"], strict=True):
        shown = line.removeprefix(record["updated"]).split()
        assert shown[:3] == [str(record[name]) for name in ("metrics", "calls", "texts")]
        assert shown[4] == f"{record['wall_ratio']:.2f}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "'speed' is not one of memory, traffic, epochs, collection"),
        (["--pairs", "19"], "--pairs must be at least 20, got 19"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_too_many_pairs():
    with pytest.raises(ValueError, match=r"give \d+ pairs, not 100000: ask for fewer"):
        command.measure_epochs(100_000, 1)


def test_times_are_of_clock_and_processors():
    start = Times.now()
    while time.process_time() < start.cpu + 0.05:
        pass
    busy = Times.now() - start
    start = Times.now()
    time.sleep(0.05)
    idle = Times.now() - start
    assert busy.cpu >= 0.05
    assert idle.wall >= 0.05
    assert idle.cpu < idle.wall / 2
    assert busy.shorter(None) is busy
    assert Times(1.0, 4.0).shorter(Times(2.0, 3.0)) == Times(1.0, 3.0)
    assert Times(1.0, 4.0).ratios(Times(2.0, 1.0)) == {"wall_ratio": 0.5, "cpu_ratio": 4.0}


def test_tables_are_aligned():
    rows = [{"what": "one", "bytes_sent": 5000, "flag": True}, {"what": "three", "bytes_sent": None, "flag": False}]
    lines = ["what   bytes sent  flag", "one         5,000   yes", "three           -    no"]
    assert table(rows, {"what": "", "bytes_sent": ",", "flag": ""}).splitlines() == lines
