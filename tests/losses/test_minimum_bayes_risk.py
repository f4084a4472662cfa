"""Where the likeliest word is not the best one, the loss chooses better than cross-entropy alone."""

from itertools import chain

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.minimum_bayes_risk import COUNTS, sentences, train
from tests.support.small_encoder import encoder_of_texts

LAYER = 6


@pytest.fixture(scope="module")
def judge(minilm):
    """The last layer: it separates unrelated words best, and the task rewards that difference.

    At layer 5 the prize is little more than half as large, and cross-entropy at weight 1 outweighs it once predictions
    are certain.
    """
    return FrozenEncoder(minilm, num_layers=LAYER)


@pytest.fixture(scope="module")
def generator(minilm):
    """What shares the logits' vocabulary: the same encoder, with the words of the task alone."""
    return encoder_of_texts(minilm, list(chain(*sentences())), LAYER)


def test_an_encoder_with_fewer_words_gives_the_same_scores(generator, judge):
    candidates, references = zip(*[texts[::2] for texts in sentences()], strict=True)
    found, expected = (bert_score(candidates, references, encoder)["f1"] for encoder in (generator, judge))
    assert len(generator.tokenizer.vocabulary) < 300
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_score_prefers_synonyms_in_every_template(judge):
    said = sentences()
    assert len(said) >= 30
    every = list(chain(*said))
    # One token for every word, so that the words of a template stand in the same place.
    assert [len(ids) - 2 for ids in judge.tokenizer(every).ids] == [len(text.split()) for text in every]
    candidates = [text for texts in said for text in texts for _ in texts]
    references = [text for texts in said for _ in texts for text in texts]
    f1 = bert_score(candidates, references, judge)["f1"].view(len(said), 3, 3)
    expected = f1 @ torch.tensor(COUNTS, dtype=torch.float32)
    # Cross-entropy is lowest for c, the expected score highest for a or b.
    assert max(COUNTS) == COUNTS[2]
    assert (expected.argmax(1) != 2).all()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_beats_cross_entropy(generator, judge):
    loss = SoftBERTScoreLoss(generator, references_reduce="mean", cache_bytes=2**22)
    alone = train(generator, judge, None)
    both = train(generator, judge, loss)
    assert both.synonyms >= alone.synonyms + 10
    assert both.f1 >= alone.f1 + 0.01
