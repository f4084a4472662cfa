"""Scores without the special tokens around texts."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, align, bert_score, rank_candidates
from bertscore_tm.functional import score_matrix
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import last_hidden_state, save_tiny_model, tiny_model
from tests.support.soft_predictions import COMPONENTS, certain

LAYER = 3


@pytest.fixture(scope="module")
def content_encoder(minilm):
    return FrozenEncoder(minilm, num_layers=LAYER, exclude_special_tokens=True)


TEXTS = ["a black cat sat on the mat", "", "hello", " ".join(["the weather is nice"] * 12)]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"all_layers": True}),
        ("bert", {"max_length": 12, "long_text": "window"}),
        ("bert", {"forward_fn": last_hidden_state}),
        ("mbart", {"max_length": 12, "long_text": "window"}),
        ("t5", {}),
        ("xlnet", {}),
        ("gpt2", {}),
    ],
)
def test_vectors_are_those_of_the_other_tokens(family, options):
    model, tokenizer = tiny_model(family)
    settings = {"num_layers": 2, **options}
    with_special = FrozenEncoder(model, tokenizer, **settings)
    without = FrozenEncoder(model, tokenizer, **settings, exclude_special_tokens=True)
    texts = with_special.tokenizer.prepare(TEXTS)
    cut = with_special.tokenizer.long_text == "truncate"
    masks = tokenizer(texts, return_special_tokens_mask=True, truncation=cut)["special_tokens_mask"]
    content = ~torch.tensor([special for mask in masks for special in mask]).bool()
    expected, result = with_special.encode(TEXTS), without.encode(TEXTS)
    assert torch.equal(result.vectors, expected.vectors[:, content])
    assert result.texts.ids.tolist() == expected.texts.ids[content.numpy()].tolist()
    assert result.texts.lengths.tolist() == [mask.count(0) for mask in masks]
    assert result.texts.has_content.tolist() == expected.texts.has_content.tolist()


def scores_of_the_loss(encoder, references):
    loss = SoftBERTScoreLoss(encoder, reduction="none", matching="max")
    labels = torch.tensor([[7, 8, 9]] * len(references))
    logits = certain(encoder, labels, 5.0).requires_grad_()
    value = loss(logits, references)
    value.sum().backward()
    assert torch.isfinite(logits.grad).all()
    return 1 - value.detach()


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_texts_without_tokens_score_0(family):
    """The tokenizer of GPT-2 adds no special tokens, so that an empty text has no tokens in either case."""
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2, exclude_special_tokens=family == "bert")
    with warnings.catch_warnings(action="ignore"):
        for settings in ({"idf": True}, {"idf": ["a cat", "rain"]}):
            result = bert_score(["", "a cat", "", "a cat"], ["a cat", " ", "", ["", "the cat"]], encoder, **settings)
            alone = bert_score([""], [""], encoder, **settings)
            for name in COMPONENTS:
                assert result[name][:3].tolist() == [0, 0, 0]
                assert 0 < result[name][3] <= 1
                assert alone[name].tolist() == [0]
            metric = BERTScore(encoder, reduction="none", **settings)
            metric.update(["", "a cat"], ["a cat", "a cat"])
            assert metric.compute()["f1"][0] == 0
    texts = ["a cat", "", "the dog", ""]
    matrix = score_matrix(texts, [*texts, "rain"], encoder)["f1"]
    assert (matrix > 0).tolist() == [[True, False, True, False, True], [False] * 5] * 2
    assert rank_candidates([texts], encoder=encoder).scores[0].isfinite().all()
    assert scores_of_the_loss(encoder, ["", ""]).tolist() == [0, 0]
    one_empty = scores_of_the_loss(encoder, ["", "a cat"])
    assert one_empty[0] == 0
    assert one_empty[1] != 0


def test_the_signature_names_it(minilm, content_encoder, encoder):
    default = FrozenEncoder(minilm, num_layers=LAYER)
    assert "special" not in [*encoder.signature(), *default.signature()]
    assert str(content_encoder.signature()) == f"{default.signature()}|special:excluded"
    other = BERTScore(content_encoder)
    other.update(["a cat"], ["the cat"])
    with pytest.raises(ValueError, match="the state belongs to a metric that differs"):
        BERTScore(default).merge_state(other)


def test_an_alignment_has_no_share_of_special_tokens(content_encoder):
    pair = "a cat sleeps", "the kitten is sleeping"
    result = align(*pair, content_encoder)
    assert result.candidate.tokens == ["a", "cat", "sleeps"]
    assert result.settings.endswith(f"layer {LAYER}, without special tokens")
    assert result.f1 == pytest.approx(bert_score(*pair, content_encoder)["f1"].item(), abs=1e-6)
    assert result.f1 == BERTScore(content_encoder).align(*pair).f1
    for side, similarity in ((result.candidate, result.similarity), (result.reference, result.similarity.T)):
        assert side.special_share == 0
        assert torch.equal(side.matches, similarity.argmax(1))
        assert torch.equal(side.best, similarity.amax(1))


def test_a_published_baseline_gives_a_warning(tmp_path, recwarn):
    folder = save_tiny_model("bert", tmp_path)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "bert-base-uncased"}))
    BERTScore(FrozenEncoder(folder, num_layers=2), rescale=True)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"baseline of bert-base-uncased includes .* --exclude-special-tokens$"):
        BERTScore(FrozenEncoder(folder, num_layers=2, exclude_special_tokens=True), rescale=True)
