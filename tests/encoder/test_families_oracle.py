"""Every family's scores against the reference package, and its vectors against hidden states of transformers."""

import bert_score as oracle_package
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer, ByT5Tokenizer, T5Model

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.encoder.families import FAMILIES
from tests.support.models import EVERY_FAMILY, KINDS, randomised, save_tiny_model, tiny_config
from tests.support.rounding import rounding
from tests.support.texts import real_pairs

LAST = 3
SINGLE_LAYERS = (0, 1, LAST)
UP_TO_FIRST = {"num_layers": 1, "all_layers": True}
TOLERANCE = 1e-6
# For unit vectors of the tiny models' width.
ROUNDING = rounding(torch.float32, 32)

# The reference package requests a space before texts from GPT-2's and RoBERTa's tokenizers; transformers 5 ignores it.
PREFIX_SPACE = {"gpt2", "opt", "roberta"}

# The norm after the last layer, in the families that have one.
FINAL_NORM = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "final_layer_norm"),
    **dict.fromkeys(("blenderbot", "mbart", "pegasus"), "layer_norm"),
    **dict.fromkeys(("gemma", "gemma2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"), "norm"),
    "gpt2": "ln_f",
    "megatron-bert": "encoder.ln",
    "modernbert": "final_norm",
    "opt": "decoder.final_layer_norm",
    "xlm-roberta-xl": "encoder.LayerNorm",
}

# Where the reference package fails under transformers 5, for texts with content.
ORACLE_FAILS = {
    ("big_bird", "all"): RuntimeError,  # sparse attention leaves padding on all states but the last
    ("deberta-v2", 0): UnboundLocalError,
    **{(family, layer): ValueError for family in ("gpt2", "opt", "umt5") for layer in SINGLE_LAYERS},
    **{("squeezebert", layer): AttributeError for layer in SINGLE_LAYERS},
}


def corpus(family="t5"):
    """Real pairs of at most eight words, one of more than 64 tokens, and one with the family's special tokens in it."""
    candidates, references = real_pairs(5, words=8)
    specials = KINDS[EVERY_FAMILY[family]].specials
    between = " ".join(f"{word} {token}" for word, token in zip(candidates[0].split(), specials, strict=False))
    return [*candidates[:4], " ".join(4 * references), between], [*references, f"{references[0]} {specials[0]} it"]


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    # The reference package recognizes a T5 by "t5" in its name.
    name = {"t5": "t5", "mt5": "mt5", "umt5": "ufive"}.get(family, "model")
    return save_tiny_model(family, tmp_path_factory.mktemp("family") / name)


@pytest.fixture(scope="module")
def held(folder):
    """Encoders of the folder, held so that all calls for a layer share the weights."""
    encoders = [FrozenEncoder(folder, num_layers=layer) for layer in SINGLE_LAYERS]
    for encoder in encoders:
        encoder.encode(["loaded"])
    return encoders


def ours(folder, layer, candidates, references, **options):
    """Precision, recall and F1, shape (3, pairs) or (3, layers, pairs)."""
    layers = {"all_layers": True} if layer == "all" else {"num_layers": layer}
    scores = bert_score(candidates, references, FrozenEncoder(folder, **layers), **options)
    return torch.stack([*scores.values()])


def scorer_of_reference_package(family, folder, layer, idf_sents=None):
    layers = {"num_layers": LAST, "all_layers": True} if layer == "all" else {"num_layers": layer}
    scorer = oracle_package.BERTScorer(folder, **layers, nthreads=0, device="cpu", idf=idf_sents is not None)
    tokenizer = scorer._tokenizer
    if family in PREFIX_SPACE:
        tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    if tokenizer.pad_token is None:  # it fails without one; batches of one text need no padding
        tokenizer.pad_token = tokenizer.eos_token
    if family == "big_bird":  # its attention depends on earlier texts; reset before every text
        scorer._model.register_forward_pre_hook(lambda model, _: model.set_attention_type("block_sparse"))
    if idf_sents is not None:
        scorer.compute_idf(idf_sents)
    return scorer


# 1. The reference package.


@pytest.mark.filterwarnings("ignore:.*longer than 64 tokens", "ignore:.*contains? special tokens")
@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("layer", [0, LAST, "all"])
def test_scores_equal_the_reference_package(family, folder, layer):
    candidates, references = corpus(family)
    if error := ORACLE_FAILS.get((family, layer)):
        with pytest.raises(error):
            scorer_of_reference_package(family, folder, layer).score(candidates, references, batch_size=1)
        return
    scorer = scorer_of_reference_package(family, folder, layer, references if layer == LAST else None)
    for idf in (False, True) if layer == LAST else (False,):
        scorer._idf = idf
        expected = torch.stack(scorer.score(candidates, references, batch_size=1))
        scores = ours(folder, layer, candidates, references, idf=idf)
        if layer == "all" and family in FINAL_NORM:
            # The reference package has the norm on single layers, but among all layers on the last one only.
            scores, expected = scores[:, LAST], expected[:, LAST]
        torch.testing.assert_close(scores, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.filterwarnings("ignore:.*longer than 64 tokens")
def test_scores_of_bytes_equal_the_reference_package(tmp_path):
    """ByT5: a T5 whose tokenizer is written in Python."""
    randomised(T5Model(tiny_config("t5", vocab_size=384))).save_pretrained(tmp_path / "byt5")
    ByT5Tokenizer(model_max_length=64).save_pretrained(tmp_path / "byt5")
    candidates, references = corpus()
    for layer in (*SINGLE_LAYERS, "all"):
        scorer = scorer_of_reference_package("byt5", str(tmp_path / "byt5"), layer)
        expected = torch.stack(scorer.score(candidates, references, batch_size=1))
        with pytest.warns(UserWarning, match="^1 candidate scored 0"):
            scores = ours(tmp_path / "byt5", layer, [*candidates, ""], [*references, "a"])
        torch.testing.assert_close(scores[..., :-1], expected, atol=TOLERANCE, rtol=0)
        assert not scores[..., -1].any()


# 2. Plain transformers, one text at a time, so that a batch's neighbours change nothing.


@pytest.mark.usefixtures("held")
def test_vectors_equal_plain_transformers(family, folder):
    texts = [text for side in corpus(family) for text in side]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    layers = []
    for text in texts:
        ids = torch.tensor([tokenizer(f" {text}" if family in PREFIX_SPACE else text, truncation=True)["input_ids"]])
        # Loaded again for BigBird, which remembers its last text.
        model = AutoModel.from_pretrained(folder).eval() if family == "big_bird" else model
        plain = model.get_encoder() if model.config.is_encoder_decoder else model
        with torch.no_grad():
            output = plain(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
            states = torch.cat([state[:, : ids.shape[1]] for state in output.hidden_states])  # (layers, tokens, width)
            torch.testing.assert_close(states[-1], output.last_hidden_state[0])
            if family in FINAL_NORM:
                states[:-1] = plain.get_submodule(FINAL_NORM[family])(states[:-1])
        layers.append(states)
    expected = normalize(torch.cat(layers, 1), dim=-1)  # (layers, tokens, width)
    for options in (*({"num_layers": layer} for layer in SINGLE_LAYERS), {"all_layers": True}, UP_TO_FIRST):
        encoder = FrozenEncoder(folder, **options)
        encoded = encoder.encode(texts)
        assert encoded.texts.lengths.max() == 64
        wanted = expected[: encoder.num_layers + 1][-encoder.num_outputs :]
        torch.testing.assert_close(encoded.vectors, wanted, atol=ROUNDING, rtol=0)
    assert encoder._backbone.loaded(torch.device("cpu")).batching == FAMILIES[family].batching
