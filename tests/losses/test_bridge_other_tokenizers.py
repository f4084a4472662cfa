"""The loss of a generator whose tokenizer is not the encoder's."""

import copy
import pickle
from functools import cache

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.losses.soft.bridge.fidelity import FIDELITY_TEXTS
from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge
from tests.support.models import tiny_model, tiny_tokenizer
from tests.support.soft_predictions import COMPONENTS, IGNORE, MATCHINGS, padded
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def whole_words():
    """A tokenizer of whole words and punctuation, which splits where the encoder's splits."""
    texts = [*FIDELITY_TEXTS, *(text for side in real_pairs(240) for text in side)]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=[*specials.values()]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


@pytest.fixture(scope="module")
def words_bridge(encoder):
    """The bridge from whole words, whose table takes longer to build than most tests."""
    return VocabularyBridge(whole_words(), encoder)


def ids_of(tokenizer, texts):
    return padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


def certain(labels, size, scale=1000.0):
    # At scales near 100, probabilities are denormal numbers, which processors multiply slowly.
    return torch.zeros(*labels.shape, size).scatter_(-1, labels.clamp(min=0)[..., None], scale)


def written(tokenizer, labels):
    """The texts that the labels say, which need not be the texts they came from."""
    return tokenizer.batch_decode([row[row != IGNORE] for row in labels], skip_special_tokens=True)


def test_certain_predictions_have_the_score_of_the_decoded_text(encoder, pairs, words_bridge):
    tokenizer = whole_words()
    labels = ids_of(tokenizer, pairs[0][:10])
    texts, references = written(tokenizer, labels), several_references(pairs[1][:10])
    corpus = pairs[1][:60]
    for idf in (False, BERTScore(encoder, idf=corpus)):
        expected = bert_score(texts, references, encoder, idf=idf and corpus)
        for matching in MATCHINGS:
            loss = SoftBERTScoreLoss(
                encoder, tokenizer=words_bridge, matching=matching, matching_temperature=1e-6, idf=idf, reduction="none"
            )
            assert loss.bridge.mode == "expand"
            scores = loss(certain(labels, len(tokenizer)), references, labels != IGNORE, return_components=True)[1]
            for name in COMPONENTS:
                assert (scores[name] - expected[name]).abs().max() < 1e-5


def test_labels_are_decoded(encoder, pairs, words_bridge):
    tokenizer = whole_words()
    labels = ids_of(tokenizer, pairs[0][:4])
    end = tokenizer.eos_token_id
    with_ends = torch.nn.functional.pad(labels, (0, 2), value=IGNORE)
    for row in with_ends:
        row[int((row != IGNORE).sum())] = end
    loss = SoftBERTScoreLoss(encoder, tokenizer=words_bridge, reduction="none")
    z = certain(with_ends, len(tokenizer), 6.0)
    by_labels = loss(z, with_ends)
    by_texts = loss(z[:, :-2], written(tokenizer, labels), labels != IGNORE)
    assert torch.allclose(by_labels, by_texts, atol=1e-6)
    assert by_labels.mean() < 0.3


@pytest.mark.parametrize("mode", ["mean", "expand"])
def test_gradcheck(mode):
    model, own = tiny_model("bert")
    encoder = FrozenEncoder(model, own, num_layers=2, dtype="float64")
    tokenizer = tiny_tokenizer("bytes")
    labels = ids_of(tokenizer, ["a black cat", "it rains"])
    generator = torch.Generator().manual_seed(0)
    base = certain(labels, len(tokenizer), 6.0).double()
    directions = torch.randn(4, *base.shape, generator=generator, dtype=torch.float64)
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tokenizer, encoder, mode, min_fidelity=0), reduction="none")

    def along(x):
        return loss(base + torch.einsum("k,kbtv->btv", x, directions), ["a cat", "rain"], labels != IGNORE)

    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(along(x).sum(), x)[0].abs().max() > 1e-4
    assert torch.autograd.gradcheck(along, x, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "expand"])
def test_hidden_states_give_what_logits_give(encoder, mode):
    tokenizer = whole_words()
    labels = ids_of(tokenizer, ["a black cat sat", "it rains"])
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tokenizer, encoder, mode, min_fidelity=0))
    torch.manual_seed(0)
    # Wider than the vocabulary, as output layers often are.
    head, hidden = torch.nn.Linear(32, len(tokenizer) + 24), torch.randn(*labels.shape, 32)
    results = []
    for from_hidden in (False, True):
        leaf = hidden.clone().requires_grad_()
        value = loss.forward_hidden(leaf, head, labels) if from_hidden else loss(head(leaf), labels)
        value.backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-4)
    assert torch.equal(loss(head(hidden), labels, return_components=True)[0], loss(head(hidden), labels))
    content = (labels != IGNORE) & ~torch.isin(labels, torch.tensor(loss.bridge.control_ids))
    assert torch.equal(results[0][1].abs().sum(-1) > 0, content)


@pytest.mark.parametrize("mode", ["mean", "expand"])
@pytest.mark.parametrize(("texts", "min_fidelity"), [(None, 0), (["it rains today", "a cat sat on the mat"], 0.85)])
def test_low_fidelity_is_refused_or_reported_with_advice(encoder, mode, texts, min_fidelity):
    bridge = VocabularyBridge(tiny_tokenizer("bytes"), encoder, mode, min_fidelity=min_fidelity)
    said = rf"texts score 0\.\d+ against themselves through the bridge from .* \(mode='{mode}'\)"
    refused = min_fidelity > 0
    with pytest.raises(ValueError, match=said) if refused else pytest.warns(UserWarning, match=said) as found:
        SoftBERTScoreLoss(encoder, bridge, fidelity_texts=texts)
    said = str(found.value if refused else found[0].message)
    assert ("mode='auto' selects" in said) is (mode == "mean")
    assert ("fidelity_texts=" in said) is (texts is None)
    assert ("below 0.85" in said and "min_fidelity=0)" in said) is refused


def test_a_bridge_may_be_shared(encoder, minilm):
    bridge = VocabularyBridge(whole_words(), encoder)
    first, second = (
        SoftBERTScoreLoss(encoder, tokenizer=bridge),
        SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=2), tokenizer=bridge),
    )
    assert first.bridge is second.bridge is copy.deepcopy(first).bridge is bridge
    assert "bridge='expand'" in repr(pickle.loads(pickle.dumps(first)))
    with pytest.raises(ValueError, match=r"logits have a vocabulary of 10, the generator's tokenizer has \d+ tokens"):
        first(torch.zeros(1, 2, 10), ["a"])
    with pytest.raises(ValueError, match="another encoder's vocabulary"):
        SoftBERTScoreLoss(FrozenEncoder(*tiny_model("bert"), num_layers=1), tokenizer=bridge)
