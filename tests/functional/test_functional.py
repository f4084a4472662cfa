"""Arguments of ``bert_score``, texts without content, warnings and errors."""

import gc
import warnings

import pytest
import torch
from transformers import PreTrainedModel

from bertscore_tm import FrozenEncoder, bert_score

SCORES = ("precision", "recall", "f1")


def quietly(*args, **kwargs):
    """Scores, and the texts of all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = bert_score(*args, **kwargs)
    return scores, [str(warning.message) for warning in caught]


def loaded_models():
    gc.collect()
    return {id(thing) for thing in gc.get_objects() if isinstance(thing, PreTrainedModel)}


def test_pairs_without_text_score_zero_with_one_warning(encoder):
    blank = ["", "  ", "\n\t", "\x00\x01", "\u200b"]
    for idf in (False, True):
        preds = [*blank, *["a cat"] * 5, "", "a dog"]
        target = [*["a cat"] * 5, *blank, "", "the dog barks"]
        scores, said = quietly(preds, target, encoder, idf=idf)
        for name in SCORES:
            assert scores[name][:-1].abs().max() == 0
            assert scores[name][-1] > 0.1
        assert len(said) == 1
        assert said[0].startswith("11 candidates scored 0")


def test_an_empty_reference_among_several_does_not_hide_the_others(encoder):
    scores, said = quietly(["a cat"], [["", "the cat", " "]], encoder)
    assert not said
    assert scores["f1"].item() == pytest.approx(bert_score("a cat", "the cat", encoder)["f1"].item(), abs=1e-6)


def test_zero_is_rescaled_too(encoder, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.5,.2,.75\n" for layer in range(6)))
    scores, said = quietly([""], ["a"], encoder, rescale=path)
    assert [scores[name].item() for name in SCORES] == pytest.approx([-1, -0.25, -3])
    assert len(said) == 1


@pytest.mark.parametrize(("all_layers", "idf"), [(False, False), (True, True)])
def test_empty_lists_give_empty_scores_without_loading_weights(minilm, all_layers, idf):
    before = loaded_models()
    scores, said = quietly([], [], FrozenEncoder(minilm, num_layers=4, all_layers=all_layers), idf=idf)
    assert {scores[name].shape for name in SCORES} == {torch.Size([5, 0] if all_layers else [0])}
    assert {scores[name].dtype for name in SCORES} == {torch.float32}
    assert not said
    assert loaded_models() <= before


def test_two_strings_are_one_pair(encoder):
    one, listed = bert_score("a cat sat", "the cat", encoder), bert_score(["a cat sat"], ["the cat"], encoder)
    for name in SCORES:
        assert one[name].shape == (1,)
        assert torch.equal(one[name], listed[name])


def test_one_reference_with_idf_gives_zero_and_a_warning(encoder):
    for pred in ("the cat sat", "a dog"):
        scores, said = quietly([pred], ["the cat sat"], encoder, idf=True)
        assert torch.isfinite(scores["precision"]).all()
        assert scores["recall"].item() == scores["f1"].item() == 0
        assert len(said) == 1
        assert "weight 0" in said[0]


def test_truncation_is_counted_and_warned_about_or_an_error(minilm):
    preds, target = ["one two three four five", "a"], ["a", "six seven eight nine ten"]
    scores, said = quietly(preds, target, FrozenEncoder(minilm, num_layers=2, max_length=5))
    assert len(said) == 1
    assert said[0].startswith("2 texts are longer than 5 tokens and were truncated")
    short = ["one two three", "a"], ["a", "six seven eight"]
    cut, none = quietly(*short, FrozenEncoder(minilm, num_layers=2))
    assert not none
    for name in SCORES:
        torch.testing.assert_close(scores[name], cut[name], atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="the limit is 5"):
        bert_score(preds, target, FrozenEncoder(minilm, num_layers=2, max_length=5, long_text="error"))


@pytest.mark.parametrize("layer", [7, -8])
def test_layer_out_of_range(minilm, layer):
    with pytest.raises(ValueError, match=f"num_layers={layer} does not exist.*layers 0 to 6"):
        bert_score(["a"], ["b"], FrozenEncoder(minilm, num_layers=layer))


def test_unlisted_model_without_layer(minilm):
    with pytest.raises(ValueError, match="pass num_layers="):
        bert_score(["a"], ["b"], minilm)


def test_a_model_that_is_nowhere_ends_in_one_clear_error():
    for call in (
        lambda: bert_score(["a"], ["b"], FrozenEncoder("nobody/nothing", num_layers=3)),
        lambda: bert_score(["a"], ["b"]),
    ):
        with pytest.raises(OSError, match="could not load") as caught:
            call()
        name = "nobody/nothing" if "nobody" in str(caught.value) else "roberta-large"
        for part in (repr(name), "a local folder of that name, then the hub", "save_pretrained(folder)"):
            assert part in str(caught.value)


def test_a_folder_without_model_ends_in_one_clear_error(tmp_path):
    with pytest.raises(OSError, match=r"could not load the configuration.*tried the local folder"):
        bert_score(["a"], ["b"], FrozenEncoder(tmp_path, num_layers=3))
