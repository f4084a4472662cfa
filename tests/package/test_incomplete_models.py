"""Folders and objects that hold only a part of an encoder: an error names what is missing."""

import pytest
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.models import save_tiny_model

PAIR = ["a cat"], ["it rains"]


# Of these models, transformers 5 makes a tokenizer without words: any two texts would score 1.
@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_weights_without_their_tokenizer_are_refused(family, tmp_path):
    folder = save_tiny_model(family, tmp_path / "model")
    assert bert_score(*PAIR, FrozenEncoder(folder, num_layers=1))["f1"].item() < 1
    for file in (tmp_path / "model").glob("*token*"):
        file.unlink()
    with pytest.raises(OSError, match=r"^could not load the tokenizer of '.*model'") as caught:
        bert_score(*PAIR, FrozenEncoder(folder, num_layers=1))
    assert "save_pretrained(folder)" in str(caught.value)


def test_a_given_tokenizer_without_vocabulary_is_refused(tmp_path, minilm):
    AutoModel.from_pretrained(minilm).config.save_pretrained(tmp_path)
    empty = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer has special tokens only: it was loaded from a folder without the"):
        FrozenEncoder(minilm, empty, num_layers=1)


def test_a_token_without_an_embedding_is_named(tmp_path):
    folder = save_tiny_model("bert", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = AutoModel.from_pretrained(folder).config.vocab_size
    tokenizer.add_tokens([f"<term{i}>" for i in range(size - len(tokenizer) + 1)])
    tokenizer.save_pretrained(folder)
    encoder = FrozenEncoder(folder, num_layers=1)
    assert bert_score(*PAIR, encoder)["f1"].item() < 1  # other texts are scored
    last = tokenizer.convert_ids_to_tokens(size)
    with pytest.raises(ValueError, match=rf"embeddings of {size}: token {size}, '{last}', has none"):
        bert_score([f"a {last}"], ["a cat"], encoder)


@pytest.mark.parametrize(
    "use",
    [
        BERTScore,
        BERTScoreReward,
        SoftBERTScoreLoss,
        lambda metric: bert_score(*PAIR, metric),
        lambda metric: rank_candidates([["a cat", "it rains"]], encoder=metric),
    ],
)
def test_a_metric_in_place_of_its_encoder_is_named(encoder, use):
    with pytest.raises(TypeError, match=r"got a bertscore_tm\..*\.BERTScore: .*pass its \.encoder"):
        use(BERTScore(encoder))
