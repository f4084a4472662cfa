"""Scoring calls, compared with the bert-score package and SacreBLEU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from examples.benchmarks.package import Encoder, count_encoded_texts, load_encoder, load_encoders, score_f1
from examples.benchmarks.peers import load_bert_score, load_sacrebleu
from examples.benchmarks.random_models import ROBERTA_LARGE, build_model, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, cut_sentences, flat_texts, make_items

# Scored in 15.6 s with roberta-large on a GTX 1080 Ti, where SacreBLEU took 5.4 s (Zhang et al. 2020, section 5).
PAPER_PAIRS = 2_998
# Words of sentences, as in a test set of WMT.
SENTENCES = (5, 35)

_SHORT_PAIRS = 600
_MIXED_CANDIDATES, _MIXED_REFERENCES, _MIXED_WORDS = 24, 11, (10, 180)
# All ordered pairs: 30 * 16 * 15 = 7,200, of 365 distinct texts.
_ITEMS, _CANDIDATES, _DISTINCT = 30, 16, 12
# roberta-large's shape scores a few pairs per second on a CPU.
_LARGE_PAIRS = 100
_TARGETS = {"float32": 3.0, "bfloat16": 5.5}

Pairs = tuple[Sequence[str], Sequence[str] | Sequence[Sequence[str]]]


def measure(options: Options) -> Iterator[Figure]:
    """Score several corpora in turn with bert-score.

    Args:
        options: settings; ``pairs`` limits the number of short texts (600), of mixed texts and items, and replaces the
            number of sentences.

    Yields:
        For each corpus, in each precision that the processor computes natively, the figures of :func:`compare`; the
        time that idf adds; how often each distinct text of the items' pairs is encoded; and the figures of
        :func:`rate_like_paper` for the encoder and for a random one of roberta-large's shape.
    """
    torch.set_num_threads(options.threads)
    encoders = load_encoders(options.model, options.num_layers)
    peer = load_bert_score(options.model, options.num_layers)
    short, items = _short(options), _pairs_of_items(options)
    yield from compare("short texts", short, encoders, peer, options.rounds, _TARGETS)
    calls = {"plain": partial(score_f1, *short, encoders["float32"])}
    calls["idf"] = partial(score_f1, *short, encoders["float32"], idf=True)
    seconds = in_turn(calls, options.rounds)
    added = [ratio - 1 for ratio in ratios(seconds["idf"], seconds["plain"])]
    yield Figure("short texts: time that idf adds", added, "share", 0.03, at_most=True)
    yield from compare("texts of mixed length", _mixed(options), encoders, peer, options.rounds, _TARGETS)
    distinct = len({*items[0]})
    name = f"{len(items[0]):,} pairs of {distinct} texts"
    yield from compare(name, items, encoders, peer, options.rounds, {"float32": 2.0})
    with count_encoded_texts(encoders["float32"]) as counts:
        score_f1(*items, encoders["float32"])
    yield Figure(f"{name}: encodings of each text", [sum(counts) / distinct], "", 1.0, at_most=True)
    yield from rate_like_paper(encoders, options)
    tokenizer = train_tokenizer(ROBERTA_LARGE, flat_texts(options.texts), options.model)
    large = load_encoder(build_model(ROBERTA_LARGE), ROBERTA_LARGE.layers, [*encoders][-1], tokenizer=tokenizer)
    once = partial(rate_like_paper, pairs=_LARGE_PAIRS, rounds=1)
    yield from once({f"random {ROBERTA_LARGE.name}, {[*encoders][-1]}": large}, options)


def compare(
    name: str,
    pairs: Pairs,
    encoders: Mapping[str, Encoder],
    peer: Callable[..., Tensor],
    rounds: int,
    targets: Mapping[str, float],
) -> Iterator[Figure]:
    """Score pairs in turn with bert-score, which computes in float32.

    Args:
        name: name of the pairs.
        pairs: candidates and references.
        encoders: encoders by their precision.
        peer: scorer of bert-score.
        rounds: number of timings of each.
        targets: speed-up to reach by precision.

    Yields:
        For each precision the speed-up and the largest difference in F1.
    """
    scorers = {dtype: partial(score_f1, *pairs, encoder) for dtype, encoder in encoders.items()}
    scorers["bert-score"] = partial(peer, *pairs)
    f1 = {scorer: score() for scorer, score in scorers.items()}
    seconds = in_turn(scorers, rounds)
    for dtype in encoders:
        faster = ratios(seconds["bert-score"], seconds[dtype])
        yield Figure(f"{name}: {dtype}, faster than bert-score", faster, "times", targets.get(dtype))
        difference = float((f1[dtype] - f1["bert-score"]).abs().max())
        limit = 1e-5 if dtype == "float32" else None
        yield Figure(f"{name}: {dtype}, largest difference in F1", [difference], "", limit, at_most=True)


def rate_like_paper(
    encoders: Mapping[str, Encoder],
    options: Options,
    *,
    pairs: int = PAPER_PAIRS,
    rounds: int | None = None,
) -> Iterator[Figure]:
    """Score as many pairs of sentences as the paper did, in turn with SacreBLEU where it is installed.

    Args:
        encoders: encoders by name.
        options: texts, rounds, and the number of pairs if given.
        pairs: number of pairs if the options give none.
        rounds: number of timings. Default: that of the options.

    Yields:
        Pairs per second (192.5 in the paper), and the time by SacreBLEU's (2.9 in the paper).
    """
    pairs = options.pairs or pairs
    sentences = cut_sentences(flat_texts(options.texts), 2 * pairs, SENTENCES)
    texts = sentences[:pairs], sentences[pairs:]
    calls: dict[str, Callable[[], Any]] = {
        name: partial(score_f1, *texts, encoder) for name, encoder in encoders.items()
    }
    sacrebleu = load_sacrebleu()
    if sacrebleu is not None:
        baseline = f"SacreBLEU, in turn with {', '.join(encoders)}"
        calls[baseline] = partial(sacrebleu, *texts)
    seconds = in_turn(calls, rounds or options.rounds)
    for name in calls:
        yield Figure(f"{pairs:,} pairs like the paper's: {name}", [pairs / time for time in seconds[name]], "pairs/s")
        if sacrebleu is not None and name in encoders:
            slower = ratios(seconds[name], seconds[baseline])
            yield Figure(f"{pairs:,} pairs like the paper's: {name}, time by SacreBLEU's", slower, "times")


def _short(options: Options) -> Pairs:
    """Return pairs from all parts of the texts, with one reference each."""
    count = min(options.pairs or _SHORT_PAIRS, len(options.texts))
    chosen = options.texts[:: max(len(options.texts) // count, 1)][:count]
    return [candidate for candidate, _ in chosen], [several[0] for _, several in chosen]


def _mixed(options: Options) -> Pairs:
    """Return candidates with several references, all of very different lengths."""
    count = min(options.pairs or _MIXED_CANDIDATES, _MIXED_CANDIDATES)
    texts = cut_sentences(flat_texts(options.texts), count * (1 + _MIXED_REFERENCES), _MIXED_WORDS)
    references = iter(texts[count:])
    return texts[:count], [[next(references) for _ in range(_MIXED_REFERENCES)] for _ in range(count)]


def _pairs_of_items(options: Options) -> Pairs:
    """Return all ordered pairs of the candidates of each item, as in minimum Bayes risk decoding."""
    count = min(options.pairs or _ITEMS, _ITEMS)
    texts = list(dict.fromkeys(flat_texts(options.texts)))
    pairs = [pair for item in make_items(texts, count, _CANDIDATES, _DISTINCT) for pair in permutations(item, 2)]
    return [candidate for candidate, _ in pairs], [reference for _, reference in pairs]
