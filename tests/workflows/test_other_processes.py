"""Encoders in other processes, on other machines and in task after task, as engines of many machines use them."""

import gc
import multiprocessing
import os
import pickle
import shutil
import weakref

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, PairScorer
from tests.support import forks
from tests.support.forked_programs import run_forked
from tests.support.models import live_models, save_tiny_model, tiny_model
from tests.support.pickles import TEXTS, use_pickle
from tests.support.ranks import HANGS_AFTER_S

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.distributed
def test_forked_processes_score_despite_threads_and_locks(tmp_path):
    done = run_forked(forks.run, folder=tmp_path)

    assert done.exit_code == 0, done.err


# Forked processes, which share memory with their parent, are in the test above.
@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_started_processes_have_the_same_vectors_and_scores(encoder, method):
    scorer = PairScorer(encoder.name, num_layers=5, idf=TEXTS)
    expected_vectors, expected_signature, expected_f1 = use_pickle(pickle.dumps([encoder, scorer]))

    with multiprocessing.get_context(method).Pool(1) as pool:
        data = pickle.dumps([encoder, scorer])
        vectors, signature, f1 = pool.apply_async(use_pickle, [data]).get(timeout=HANGS_AFTER_S)

    assert signature == expected_signature == encoder.signature()
    torch.testing.assert_close(vectors, expected_vectors, atol=1e-6, rtol=0)
    assert f1 == pytest.approx(expected_f1, abs=1e-6)


def copy_again(folder):
    """Copy a folder to its own place, as to the same path of another machine: equal contents, other times."""
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    for file in folder.iterdir():
        os.utime(file, (1, 1))


@pytest.mark.parametrize("is_signed", [False, True])
def test_pickles_are_used_where_the_folder_has_the_same_contents(tmp_path, is_signed):
    folder = save_tiny_model("bert", tmp_path / "model")
    encoder = FrozenEncoder(folder, num_layers=2)
    metric = BERTScore(encoder, idf=True)
    metric.update(TEXTS, TEXTS[::-1])
    expected = metric.compute()
    # To sign reads the contents, which are compared where they were not read.
    signature = encoder.signature() if is_signed else None
    data = pickle.dumps(metric)
    copy_again(tmp_path / "model")

    moved = pickle.loads(data)

    assert moved.compute() == expected
    moved.reset()
    moved.update(TEXTS, TEXTS[::-1])
    assert moved.compute() == expected
    assert signature in (None, moved.encoder.signature())
    # A metric that was made there merges it.
    there = BERTScore(FrozenEncoder(folder, num_layers=2), idf=True)
    there.merge_state(moved)
    assert there.compute() == expected


@pytest.mark.parametrize("difference", ["weights", "size", "nothing there"])
def test_pickles_are_refused_where_the_folder_has_other_contents(tmp_path, difference):
    folder = tmp_path / "model"
    encoder = FrozenEncoder(save_tiny_model("bert", folder), num_layers=2)
    if difference == "weights":
        encoder.signature()  # reads them
    data = pickle.dumps(encoder)
    copy_again(folder)
    if difference == "weights":
        weights = next(folder.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    elif difference == "size":
        (folder / "config.json").open("a").write("\n")
    else:
        shutil.rmtree(folder)

    again = pickle.loads(data)

    for use in (again.signature, lambda: again.encode(TEXTS)):
        with pytest.raises(OSError, match=r"contents of .*model.* or differ on this machine.*Create the encoder again"):
            use()


def test_a_pickle_stays_small_when_the_encoder_was_used(minilm):
    encoder = FrozenEncoder(minilm, num_layers=5)
    encoder.encode(TEXTS)
    encoder.signature()

    assert len(pickle.dumps(encoder)) < 10_000


def test_tasks_of_one_process_share_the_model_that_was_used_last(minilm):
    data = pickle.dumps(FrozenEncoder(minilm, num_layers=5, dtype="float64"))

    def task():
        """Return the model that a task uses, and drop its encoder."""
        model = weakref.ref(pickle.loads(data).backbone(CPU))
        gc.collect()
        return model

    model = task()

    assert model() is not None
    assert task() is model

    # A ready model, which nobody can ask for again, does not stay.
    ready = weakref.ref(FrozenEncoder(*tiny_model("bert"), num_layers=1).backbone(CPU))
    gc.collect()
    assert (model(), ready()) == (None, None)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_unload_frees_a_model_that_stayed(minilm, device):
    options = {"num_layers": 5, "dtype": "float64", "device": "cpu"}
    before = live_models()
    model = weakref.ref(FrozenEncoder(minilm, **options).backbone(CPU))

    FrozenEncoder(minilm, num_layers=4, device="cpu").unload(device)  # another model

    assert model() is not None

    FrozenEncoder(minilm, **options).unload(device)
    assert model() is None
    assert live_models() <= before


def test_the_next_model_is_loaded_after_the_last_was_freed(tmp_path):
    """Two models that fit in memory one after the other need not fit together."""
    first = FrozenEncoder(save_tiny_model("bert", tmp_path / "model"), num_layers=1)
    model = weakref.ref(first.backbone(CPU))
    del first
    assert model() is not None
    second = FrozenEncoder(save_tiny_model("bert", tmp_path / "other"), num_layers=2)
    load = second._backbone._load
    alive = []

    def load_later(dtype):
        gc.collect()
        alive.append(model() is not None)
        return load(dtype)

    second._backbone._place(CPU, load_later)

    assert alive == [False]
