"""Scoring calls compared with the bert-score package, and the shares of their time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder.precision import has_native_bfloat16
from examples.benchmarks.devices import matrix_rate
from examples.benchmarks.options import Options, Texts, flat_texts
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["measure", "seconds_inside"]

_SHORT_PAIRS, _MIXED_CANDIDATES, _MIXED_REFERENCES = 600, 24, 11
_LONGEST_OF_MIXED = 6  # texts put together
_VALIDATION_BATCH = 16
_CPU = torch.device("cpu")


def measure(options: Options) -> Iterator[Figure]:
    """Score short texts, and texts of mixed length with several references, in turn with the peer.

    Args:
        options: texts, encoder, rounds and threads.

    Yields:
        For each precision that the processor computes natively the speed-up over the peer, the largest difference in
        F1, the rate of useful operations relative to matrix products, and the share of the time outside the encoder;
        the time that idf adds; and the speed-up of a second validation with the same references.
    """
    torch.set_num_threads(options.threads)
    texts = {"short texts": _short(options), "mixed texts, several references": _mixed(options)}
    dtypes = ["float32", *(["bfloat16"] if has_native_bfloat16(_CPU) else [])]
    encoders = {dtype: FrozenEncoder(options.model, num_layers=options.num_layers, dtype=dtype) for dtype in dtypes}
    peer = _peer(options)
    for name, chosen in texts.items():
        scorers: dict[str, Callable[[], Any]] = {
            dtype: partial(_ours, chosen, encoder) for dtype, encoder in encoders.items()
        }
        scorers["bert-score"] = partial(_theirs, chosen, peer)
        found = {scorer: call() for scorer, call in scorers.items()}
        seconds = in_turn(scorers, options.rounds)
        target = {"float32": 1.7 if name == "short texts" else 2.0, "bfloat16": 5.0}
        for dtype in dtypes:
            faster = ratios(seconds["bert-score"], seconds[dtype])
            yield Figure(f"{name}: {dtype}, faster than bert-score", faster, "times", target[dtype])
            deviation = float((found[dtype] - found["bert-score"]).abs().max())
            yield Figure(f"{name}: {dtype}, largest difference in F1", [deviation], "")
        if name == "short texts":
            yield from _parts(options, chosen, encoders)
            yield _idf(options, chosen, encoders["float32"])
    yield _epochs(options, texts["short texts"], encoders["float32"])


@contextmanager
def seconds_inside(encoder: FrozenEncoder) -> Iterator[list[float]]:
    """Time every pass through an encoder's model.

    Args:
        encoder: the encoder, without other users during the measurement.

    Yields:
        A list that grows by the seconds of each pass.
    """
    passes: list[float] = []
    model = encoder.backbone(_CPU)
    began: list[float] = []
    before = model.register_forward_pre_hook(lambda *_: began.append(time.perf_counter()))
    after = model.register_forward_hook(lambda *_: passes.append(time.perf_counter() - began.pop()))
    try:
        yield passes
    finally:
        before.remove()
        after.remove()


def _ours(texts: Texts, encoder: FrozenEncoder, idf: bool = False) -> Tensor:
    candidates, references = [one for one, _ in texts], [several for _, several in texts]
    f1: Tensor = bert_score(candidates, references, encoder, idf=idf, device=_CPU)["f1"]
    return f1


def _theirs(texts: Texts, peer: Any) -> Tensor:
    f1: Tensor = peer.score([one for one, _ in texts], [several for _, several in texts])[2]
    return f1


def _parts(options: Options, texts: Texts, encoders: dict[str, FrozenEncoder]) -> Iterator[Figure]:
    distinct = list(dict.fromkeys(chain.from_iterable((one, *several) for one, several in texts)))
    for dtype, encoder in encoders.items():
        config = encoder.config
        width, inner = int(config.hidden_size), int(config.intermediate_size)
        tokens = sum(map(len, encoder.tokenizer(distinct).ids))
        # Only products with weights: attention adds little for short texts.
        operations = 2 * tokens * encoder.num_layers * (4 * width**2 + 2 * width * inner)
        shares, others = [], []
        for _ in range(options.rounds):
            rate = matrix_rate(2048, width, inner, getattr(torch, dtype), _CPU, rounds=2)
            with seconds_inside(encoder) as passes:
                began = time.perf_counter()
                _ours(texts, encoder)
                whole = time.perf_counter() - began
            shares.append(operations / whole / rate)
            others.append(1 - sum(passes) / whole)
        least = 0.85 if dtype == "float32" else 0.65
        yield Figure(f"{dtype}, share of the matrix-product rate", shares, "share", least)
        yield Figure(f"{dtype}, time that is not the encoder's", others, "share", 0.06, at_most=True)


def _idf(options: Options, texts: Texts, encoder: FrozenEncoder) -> Figure:
    scorers = {"plain": partial(_ours, texts, encoder), "idf": partial(_ours, texts, encoder, idf=True)}
    seconds = in_turn(scorers, options.rounds)
    added = [ratio - 1 for ratio in ratios(seconds["idf"], seconds["plain"])]
    return Figure("time that idf adds", added, "share", 0.03, at_most=True)


def _epochs(options: Options, texts: Texts, encoder: FrozenEncoder) -> Figure:
    """Measure the speed-up of a second validation, which finds the references in the cache."""
    references = [several[0] for _, several in texts]
    # Like a generator's texts, candidates are as long as the references and change in each epoch.
    words = [reference.split() for reference in references]
    faster = []
    for number in range(options.rounds):
        metric = BERTScore(encoder)
        encoder.cache("cpu").clear()
        seconds = []
        for epoch in range(2):
            candidates = [" ".join(one[::-1][epoch:] + one[:epoch] + [str(number)]) for one in words]
            began = time.perf_counter()
            for start in range(0, len(references), _VALIDATION_BATCH):
                stop = start + _VALIDATION_BATCH
                metric.update(candidates[start:stop], references[start:stop])
            metric.compute()
            metric.reset()
            seconds.append(time.perf_counter() - began)
        faster.append(seconds[0] / seconds[1])
    return Figure("second validation, faster than the first", faster, "times", 1.8)


def _short(options: Options) -> Texts:
    """Return pairs from all parts of the texts, with one reference each."""
    count = min(options.pairs or _SHORT_PAIRS, len(options.texts))
    every = max(len(options.texts) // count, 1)
    return [(candidate, references[:1]) for candidate, references in options.texts[::every][:count]]


def _mixed(options: Options) -> Texts:
    """Return texts with several references; without such texts, concatenated texts of different lengths."""
    count = min(options.pairs or _MIXED_CANDIDATES, _MIXED_CANDIDATES, len(options.texts))
    several = [one for one in options.texts if len(one[1]) >= _MIXED_REFERENCES]
    if several:
        return several[:: max(len(several) // count, 1)][:count]
    flat = flat_texts(options.texts)
    made, place = [], 0
    for _ in range(count):
        parts = []
        for number in range(1 + _MIXED_REFERENCES):
            length = 1 + (place + number) % _LONGEST_OF_MIXED
            parts.append(" ".join(flat[(place + step) % len(flat)] for step in range(length)))
            place += length
        made.append((parts[0], parts[1:]))
    return made


def _peer(options: Options) -> Any:
    from bert_score import BERTScorer

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity(logging.ERROR)
    return BERTScorer(model_type=options.model, num_layers=options.num_layers, device="cpu")
