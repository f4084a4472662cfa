"""The score against the reference package, against plain loops, and its invariances, with the real encoder."""

import contextlib
import math
from collections import Counter

import bert_score as oracle_package
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import bert_score
from bertscore_tm.scoring import (
    DocumentFrequencies,
    best_of_references,
    guarded_f1,
    harmonic_mean,
    idf_weights,
    precision_recall_f1,
    rescale,
)
from tests.support import real_pairs, several_references

SCORES = ("precision", "recall", "f1")
TOLERANCE = 1e-6
BASELINE = "LAYER,P,R,F\n" + "".join(f"{i},{0.1 + i / 20},{0.2 + i / 25},{0.15 + i / 30}\n" for i in range(7))

# Layer (None: all), several references, idf (None, "references" or "sents"), rescaling.
SETTINGS = [
    (0, False, None, False),
    (0, True, "sents", False),
    (3, False, "references", False),
    (3, True, None, False),
    (3, False, None, True),
    (6, False, None, False),
    (6, False, "references", False),
    (6, False, "sents", False),
    (6, True, None, False),
    (6, True, "references", False),
    (6, True, "references", True),
    (None, False, "references", False),
    (None, False, None, True),
]


def stacked(scores):
    return torch.stack([scores[name] for name in SCORES])


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Most of this file encodes few texts at a time, where threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def deviations(minilm, pairs, tmp_path_factory):
    """A function from a setting to the largest difference to the reference package; each computed once."""
    table = tmp_path_factory.mktemp("baseline") / "table.csv"
    table.write_text(BASELINE)
    candidates, single = pairs
    known, states = {}, {}
    encode = oracle_package.utils.bert_encode

    def encode_once(model, ids, attention_mask, all_layers=False):
        # Its own result, kept from setting to setting: it encodes each text in a batch of its own.
        key = (len(getattr(model.encoder, "layer", ())), all_layers, tuple(ids[0].tolist()))
        assert len(ids) == 1
        if key not in states:
            states[key] = encode(model, ids, attention_mask, all_layers)
        return states[key].clone()

    def deviation(setting):
        if setting not in known:
            layer, several, idf, rescaled = setting
            references = several_references(single) if several else single
            flat = [text for group in references for text in group] if several else single
            sents = {None: None, "references": flat, "sents": candidates[:100]}[idf]
            all_layers, baseline_path = layer is None, str(table) if rescaled else None
            scorer = oracle_package.BERTScorer(
                model_type=minilm,
                num_layers=6 if all_layers else layer,
                all_layers=all_layers,
                idf=idf is not None,
                idf_sents=sents,
                nthreads=0,
                device="cpu",
                lang="en",
                rescale_with_baseline=rescaled,
                baseline_path=baseline_path,
            )
            expected = torch.stack(scorer.score(candidates, references, batch_size=1))
            ours = bert_score(
                candidates,
                references,
                minilm,
                layer,
                all_layers,
                idf=idf is not None,
                idf_sents=sents if idf == "sents" else None,
                rescale_with_baseline=rescaled,
                baseline_path=baseline_path,
            )
