"""The score against the reference package, and its invariances, with the real encoder."""

from functools import cache

import bert_score as oracle_package
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.core.matching import MatchedPairs, MatchedTokens
from bertscore_tm.core.scores import best_of_references, harmonic_mean, precision_recall_f1, selection_f1
from tests.support.oracle import oracle_scores
from tests.support.texts import several_references

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
PAIRS_COMPARED = 16


def stacked(scores):
    return torch.stack([scores[name] for name in SCORES])


@pytest.fixture(scope="module")
def deviations(minilm, pairs, tmp_path_factory):
    """A function from a setting to the largest difference to the reference package."""
    table = tmp_path_factory.mktemp("baseline") / "table.csv"
    table.write_text(BASELINE)
    candidates, single = (side[:: len(side) // PAIRS_COMPARED] for side in pairs)
    states = {}
    encode = oracle_package.utils.bert_encode
    # Held, so that all settings of a layer share the weights.
    encoders = [FrozenEncoder(minilm, num_layers=layer) for layer in (0, 3, 6)]
    for encoder in encoders:
        encoder.encode(["loaded"])

    def encode_once(model, ids, attention_mask, all_layers=False):
        # Computed once for all settings; it encodes each text in a separate batch.
        key = (len(getattr(model.encoder, "layer", ())), all_layers, tuple(ids[0].tolist()))
        assert len(ids) == 1
        if key not in states:
            states[key] = encode(model, ids, attention_mask, all_layers)
        return states[key].clone()

    def deviation(setting):
        layer, has_several, idf, rescaled = setting
        references = several_references(single) if has_several else single
        flat = [text for group in references for text in group] if has_several else single
        sents = {None: None, "references": flat, "sents": pairs[0][:100]}[idf]
        all_layers, baseline_path = layer is None, str(table) if rescaled else None
        options = {"idf": sents or False, "table": baseline_path, "all_layers": all_layers}
        expected = oracle_scores(minilm, candidates, references, 6 if all_layers else layer, **options)
        ours = bert_score(
            candidates,
            references,
            FrozenEncoder(minilm, num_layers=layer, all_layers=all_layers),
            idf=sents if idf == "sents" else idf is not None,
            rescale=baseline_path or False,
        )
        assert stacked(ours).shape == expected.shape == (3, *([7] if all_layers else []), PAIRS_COMPARED)
        return (stacked(ours) - expected).abs().max().item()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle_package.utils, "bert_encode", encode_once)
        patch.setattr(oracle_package.scorer, "get_model", cache(oracle_package.scorer.get_model))
        yield deviation


@pytest.mark.parametrize("weight", [1.0, 0.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_stay_in_the_range_of_similarities_and_are_0_without_weight(sign, weight):
    token = MatchedTokens(torch.tensor([0]), torch.tensor([[sign * (1 + 1e-6)]]), torch.tensor([1]))
    scores = precision_recall_f1(MatchedPairs(token, token), torch.tensor([weight], dtype=torch.float64))
    assert [score.item() for score in scores] == [sign * weight] * 3


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def test_equals_the_reference_package(deviations, setting):
    deviation = deviations(setting)
    assert deviation <= TOLERANCE
    assert deviation > 0 or setting[0] == 0  # else something was compared with itself


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_scores_do_not_depend_on_the_batch_size(encoder, minilm, pairs, batch_size, idf):
    candidates, references = pairs[0][:16], several_references(pairs[1][:16])
    # Of fixed texts, as the document frequencies of the references change with the corpus.
    options = {"idf": pairs[1][:16] if idf else False}
    expected = stacked(bert_score(candidates, references, encoder, **options))
    encoder = FrozenEncoder(minilm, num_layers=5, batch_size=batch_size)
    result = stacked(bert_score(candidates, references, encoder, **options))
    torch.testing.assert_close(result, expected, atol=TOLERANCE, rtol=0)
    for i in (0, 3, 15):
        alone = stacked(bert_score([candidates[i]], [references[i]], encoder, **options))
        torch.testing.assert_close(alone, expected[:, [i]], atol=TOLERANCE, rtol=0)


# The parts.


scores_in_range = st.floats(-1, 1, allow_subnormal=False)


@settings(deadline=None)
@given(p=scores_in_range, r=scores_in_range)
@example(p=0.3, r=-0.3)
def test_harmonic_mean_is_bounded_and_exact_where_positive(p, r):
    f = harmonic_mean(*torch.tensor([p, r], dtype=torch.float64)).item()
    assert -1 <= f <= 1
    if p > 0 and r > 0:
        assert f == pytest.approx(2 * p * r / (p + r), abs=1e-12)
    if p + r == 0:
        assert f == 0


@settings(deadline=None)
@given(p=scores_in_range, r=scores_in_range)
def test_selection_f1_is_continuous_bounded_and_has_finite_gradients(p, r):
    both = torch.tensor([p, r], dtype=torch.float64, requires_grad=True)
    f = selection_f1(both[0], both[1])
    f.backward()
    assert torch.isfinite(both.grad).all()
    assert min(p, r) - 1e-12 <= f.item() <= max(p, r) + 1e-12
    # The metric keeps the formula, cut to 1.
    expected = harmonic_mean(*both.detach()).item() if min(p, r) > 0 else min(p, r)
    assert f.item() == pytest.approx(expected, abs=1e-12)


def test_best_of_references_takes_each_maximum_within_its_group():
    scores = torch.tensor([[-0.5, 0.1, 0.9, -0.2, -0.2], [0.5, 0.4, 0.3, 0.2, 0.1]])
    best, which = best_of_references(scores, torch.tensor([1, 2, 2]))
    assert best.tolist() == torch.tensor([[-0.5, 0.9, -0.2], [0.5, 0.4, 0.2]]).tolist()
    assert which.tolist() == [[0, 1, 0], [0, 0, 0]]
