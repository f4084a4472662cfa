"""Every family: ready models and folders, memory, length limits, windows, soft tokens, and errors."""

import copy
import pickle
from dataclasses import dataclass, field
from functools import cached_property

import bert_score as oracle_package
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn.functional import normalize
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertModel,
    ByT5Tokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Model,
    XLMModel,
)
from transformers.utils import logging as transformers_logging

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.encoder.families import FAMILIES
from bertscore_tm.encoder.probe import family_of
from bertscore_tm.encoder.soft_tokens import encode_soft
from tests.support.models import (
    EVERY_FAMILY,
    KINDS,
    randomised,
    soft_texts,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    windows_of,
)
from tests.support.rounding import rounding
from tests.support.texts import real_pairs

# For unit vectors of the tiny models' width.
ROUNDING = rounding(torch.float32, 32)
DECODERS = ("gemma", "gemma2", "gpt2", "llama", "mistral", "olmo2", "opt", "phi3", "qwen2", "qwen3")
TEXTS = ["a cat sat on the mat", "", "hello", "the quick brown fox jumps over the lazy dog"]

LAST = 3
SINGLE_LAYERS = (0, 1, LAST)
UP_TO_FIRST = {"num_layers": 1, "all_layers": True}


@dataclass
class Tiny:
    """A tiny model with its head, its tokenizer, a folder of both, and a folder of the model without the head."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    folder: str
    base_folder: str
    # The encoders of the folders, by their settings.
    loaded: dict[tuple, FrozenEncoder] = field(default_factory=dict)

    @cached_property
    def ready(self) -> FrozenEncoder:
        """Layers 0 and 1 of the model with its head."""
        return FrozenEncoder(self.model, self.tokenizer, **UP_TO_FIRST)

    def load(self, num_layers: int = LAST, **options) -> FrozenEncoder:
        """Return an encoder of a folder, loaded once: layers 0 and 1 come from the folder without the head."""
        key = (num_layers, *options.items())
        if key not in self.loaded:
            source = (self.folder,)
            if num_layers <= 1:
                source = (self.base_folder, self.tokenizer)
            self.loaded[key] = FrozenEncoder(*source, num_layers=num_layers, **options)
        return self.loaded[key]


def encoder_within(model):
    """The encoder within a model, or the model itself if it has no decoder."""
    return model.get_encoder() if model.config.is_encoder_decoder else model


def plain_encoder(model):
    """A copy of the encoder within a model."""
    return encoder_within(copy.deepcopy(model))


def model_with_head(family):
    """A tiny random model with its head."""
    config = tiny_config(family)
    if config.is_encoder_decoder:
        auto_class = AutoModelForSeq2SeqLM
    elif family in (*DECODERS, "xlnet"):
        auto_class = AutoModelForCausalLM
    else:
        auto_class = AutoModelForMaskedLM
    return randomised(auto_class.from_config(config))


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(family, tmp_path_factory):
    """The model of a family, made and saved once: pytest runs all tests of a family before those of the next."""
    # The reference package recognizes a T5 by "t5" in its name.
    name = {"t5": "t5", "mt5": "mt5", "umt5": "ufive"}.get(family, "model")
    parent = tmp_path_factory.mktemp("family")
    tokenizer = tiny_tokenizer(EVERY_FAMILY[family])
    made = Tiny(model_with_head(family), tokenizer, str(parent / name), str(parent / "base"))
    made.model.save_pretrained(made.folder)
    made.model.base_model.save_pretrained(made.base_folder)
    tokenizer.save_pretrained(made.folder)
    return made


def test_every_supported_family_is_tested():
    assert set(FAMILIES) == set(EVERY_FAMILY)


def pickled(encoder):
    return pickle.loads(pickle.dumps(encoder))


def test_every_source_has_equal_vectors_and_prints_nothing(tiny, capfd, caplog):
    random_state = torch.get_rng_state()
    transformers_logging.warning_once.cache_clear()
    folder = tiny.load(all_layers=True)
    folder.encode(real_pairs(4)[1])  # longer ones first: BigBird switches to another attention for them, and back
    expected = folder.encode(TEXTS).vectors  # (layers, tokens, width)
    of_folder = pickled(folder)

    assert len(expected) == LAST + 1
    assert of_folder.backbone("cpu") is folder.backbone("cpu")
    for encoder in (tiny.ready, pickled(tiny.ready), of_folder):
        wanted = expected[: encoder.num_layers + 1][-encoder.num_outputs :]
        torch.testing.assert_close(encoder.encode(TEXTS).vectors, wanted, atol=ROUNDING, rtol=0)
        assert copy.deepcopy(encoder) is encoder
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


# Packed by our attention, by attention of relative positions, and not packed.
@pytest.mark.parametrize("family", ["bert", "t5", "big_bird"])
def test_a_pickle_of_a_pickle_gives_equal_vectors(family):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2)

    vectors = pickled(pickled(encoder)).encode(TEXTS).vectors

    torch.testing.assert_close(vectors, encoder.encode(TEXTS).vectors, atol=ROUNDING, rtol=0)


def test_only_needed_layers_are_in_memory(family, tiny):
    with torch.device("meta"):
        smaller = encoder_within(AutoModel.from_config(tiny_config(family, layers=1)))
    expected = sum(p.numel() for name, p in smaller.named_parameters() if not name.startswith("pooler"))

    for encoder in (tiny.ready, tiny.load(1), tiny.load(**UP_TO_FIRST)):
        model = encoder.backbone("cpu")
        assert sum(p.numel() for p in model.parameters()) == expected
        assert not any(p.requires_grad for p in model.parameters())
        assert not any(module.training for module in model.modules())
        if tiny.model.config.is_encoder_decoder:
            assert not any("decoder" in name for name, _ in model.named_modules())


@pytest.mark.parametrize("options", [{"inner_group_num": 2}, {"num_hidden_groups": 2}, {"num_hidden_groups": 4}])
def test_layers_of_albert_with_groups_equal_a_plain_loop(options):
    model = randomised(AutoModel.from_config(tiny_config("albert", 4, **options)))
    tokenizer = tiny_tokenizer("albert")
    groups = model.encoder.albert_layer_groups
    states = []
    for text in TEXTS:
        with torch.no_grad():
            embedded = model.embeddings(torch.tensor([tokenizer.encode(text)]))
            layers = [model.encoder.embedding_hidden_mapping_in(embedded)]
            for layer in range(4):
                output = groups[layer * len(groups) // 4](layers[-1], None)
                layers.append(output[0] if isinstance(output, tuple) else output)
        states.append(torch.stack(layers)[:, 0])
    expected = normalize(torch.cat(states, 1), dim=-1)
    # Copies with 4, 2, 3 and 1 layers; layer 0 needs one too.
    upper = FrozenEncoder(model, tokenizer, all_layers=True)
    lower = FrozenEncoder(model, tokenizer, num_layers=2, all_layers=True)
    single = [FrozenEncoder(model, tokenizer, num_layers=layer) for layer in (0, 3)]

    for encoder in (upper, lower, pickled(lower), *single):
        wanted = expected[: encoder.num_layers + 1][-encoder.num_outputs :]
        torch.testing.assert_close(encoder.encode(TEXTS).vectors, wanted, atol=ROUNDING, rtol=0)


class LosesState(XLMModel):
    def forward(self, **kwargs):
        output = super().forward(**kwargs)
        output.hidden_states = output.hidden_states and output.hidden_states[1:]
        return output


def test_states_that_cannot_be_counted_nor_recorded_are_an_error():
    """The layers of XLM are in four lists."""
    model, tokenizer = tiny_model("xlm")
    loses = LosesState(model.config).eval()

    with pytest.raises(
        ValueError, match=r"LosesState returned 3 hidden states, not 4 for 3 layers.*config.num_hidden_layers"
    ):
        FrozenEncoder(loses, tokenizer, all_layers=True)


# Relative positions; those of DeBERTa depend on the configuration.
UNLIMITED = {"deberta", "deberta-v2", "mt5", "t5", "umt5", "xlnet"}
# Rotary positions have no limit; ProphetNet gives all further tokens its last position.
TAKE_MORE = {"modernbert", "prophetnet", *DECODERS} - {"gpt2", "opt"}


@pytest.mark.parametrize(
    ("family", "options", "limit"),
    [
        ("deberta", {"relative_attention": True, "position_biased_input": True}, 512),
        ("modernbert", {"max_position_embeddings": 8192}, 8192),
        ("llama", {"max_position_embeddings": 4096}, 4096),
        *((family, {"relative_attention": True, "position_biased_input": False}, None) for family in sorted(UNLIMITED)),
    ],
)
def test_number_of_positions(family, options, limit):
    config = AutoConfig.for_model(family, **options)
    assert family_of(config).max_positions(config) == limit


@pytest.mark.parametrize("family", [name for name in EVERY_FAMILY if name not in UNLIMITED], indirect=True)
def test_the_length_limit_is_the_number_of_positions(family, tiny):
    limit = family_of(tiny.model.config).max_positions(tiny.model.config)

    with pytest.raises(ValueError, match=f"exceeds the {limit} positions"):
        tiny.load(1, max_length=limit + 1).tokenizer(["a"])
    assert tiny.load(1, max_length=limit).encode(["a " * 100]).texts.lengths.tolist() == [limit]
    ids = torch.tensor([tiny.tokenizer("a " * 100, truncation=True, max_length=limit + 1)["input_ids"]])
    assert ids.shape == (1, limit + 1)
    if family in TAKE_MORE:
        plain_encoder(tiny.model)(ids)
    else:
        with pytest.raises((IndexError, RuntimeError)):
            plain_encoder(tiny.model)(ids)


def test_vectors_of_windows_equal_plain_transformers(tiny):
    encoder = tiny.load(long_text="window", max_length=20)
    text = " ".join(real_pairs(3, words=14)[1])
    tokenized = encoder.tokenizer([text])
    windows = windows_of(tokenized, encoder.tokenizer)
    plain = plain_encoder(tiny.model.base_model)
    with torch.no_grad():
        states = [plain(torch.tensor([ids])).last_hidden_state[0] for ids, _ in windows]
    expected = torch.cat([part[np.array(places) >= 0] for part, (_, places) in zip(states, windows, strict=True)])

    vectors = encoder.encode([text, "a"]).vectors[0]

    assert len(windows) > 3
    torch.testing.assert_close(vectors[: len(tokenized.ids)], normalize(expected, dim=-1), atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("layer", [0, LAST])
def test_soft_tokens_equal_ids(tiny, layer):
    encoder = tiny.load(layer)
    # Texts without unknown tokens: some models take them for padding and number their positions so.
    texts = [*TEXTS[2:], *real_pairs(2)[1]]
    embeds, mask = soft_texts(encoder, texts)

    for rows in ([*range(len(texts))], [0]):  # the second is padded after its end only
        soft = encode_soft(encoder, embeds[rows], mask[rows])
        expected = encoder.encode([texts[row] for row in rows]).vectors
        torch.testing.assert_close(soft[:, mask[rows]], expected, atol=ROUNDING, rtol=0)
    encode_soft(encoder, embeds, mask)[:, mask][..., 0].sum().backward()

    assert (embeds.grad[mask] != 0).any(-1).all()
    assert not embeds.grad[~mask].any()


class DrawsNumbers(BertModel):
    """As LED, FSMT and NLLB-MoE do in some versions of transformers, which then do not use them."""

    def forward(self, *args, **options):
        torch.rand([])
        return super().forward(*args, **options)


def test_a_model_that_draws_numbers_keeps_the_random_state():
    model = randomised(DrawsNumbers(tiny_config("bert")))
    encoder = FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=2)
    random_state = torch.get_rng_state()
    encoder.encode(TEXTS)

    assert torch.equal(torch.get_rng_state(), random_state)


def test_opt_with_narrow_embeddings_has_single_layers_only():
    """As OPT 350M: no final norm, and layers wider than the embeddings."""
    model = randomised(AutoModel.from_config(tiny_config("opt", word_embed_proj_dim=16, do_layer_norm_before=False)))
    tokenizer = tiny_tokenizer("opt")
    ids = torch.tensor([tokenizer.encode(" " + TEXTS[0])])
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states

    for layer in (0, 1, 3):
        vectors = FrozenEncoder(model, tokenizer, num_layers=layer).encode(TEXTS[:1]).vectors
        expected = states[layer] if layer == 3 else model.decoder.project_out(states[layer])
        torch.testing.assert_close(vectors, normalize(expected, dim=-1), atol=ROUNDING, rtol=0)

    with pytest.raises(ValueError, match=r"the layers of OPTModel differ in width.*num_layers, not all_layers"):
        FrozenEncoder(model, tokenizer, all_layers=True)


@pytest.mark.parametrize("family", [name for name in EVERY_FAMILY if name != "albert"], indirect=True)
def test_a_model_with_fewer_layers_than_configured_is_refused(family, tiny):
    # A part of a model with a decoder shares the configuration.
    shorter = plain_encoder(tiny.model.base_model)
    for path in FAMILIES[family].layer_paths:
        parent, _, name = path.rpartition(".")
        setattr(shorter.get_submodule(parent), name, shorter.get_submodule(path)[:2])

    with pytest.raises(ValueError, match=r"2 entries in .*num_hidden_layers=3. Set model.config.num_hidden_layers = 2"):
        FrozenEncoder(shorter, tiny.tokenizer, num_layers=-1)
    # ProphetNet refuses to set the common name.
    setattr(shorter.config, "num_encoder_layers" if family == "prophetnet" else "num_hidden_layers", 2)
    cut = FrozenEncoder(shorter, tiny.tokenizer, num_layers=-1)
    expected = tiny.load(all_layers=True).encode(TEXTS).vectors[2:3]
    assert cut.num_layers == 2
    torch.testing.assert_close(cut.encode(TEXTS).vectors, expected, atol=ROUNDING, rtol=0)
    with pytest.raises(ValueError, match=r"num_layers \(--num-layers\) 3 is not one of the layers 0 to 2"):
        FrozenEncoder(shorter, tiny.tokenizer, num_layers=3)


@pytest.mark.parametrize(
    ("family", "path"),
    [("bert", "embeddings.position_embeddings"), ("gpt2", "wpe"), ("opt", "decoder.embed_positions")],
)
def test_a_model_with_fewer_positions_than_configured_is_refused(family, path):
    model = copy.deepcopy(tiny_model(family)[0])
    tokenizer = tiny_model(family)[1]
    table = model.get_submodule(path)
    table.weight = torch.nn.Parameter(table.weight[:32].detach())
    count = 30 if family == "opt" else 32  # OPT's first position is that of row 2

    with pytest.raises(
        ValueError, match=rf"{count} entries in {path}.* Set model.config.max_position_embeddings = {count}"
    ):
        FrozenEncoder(model, tokenizer, num_layers=2)
    model.config.max_position_embeddings = count
    assert FrozenEncoder(model, tokenizer, num_layers=2).encode(["a " * 100]).texts.lengths.tolist() == [count]


def test_a_model_that_gives_nan_for_padding_is_not_padded():
    """Gemma 2 in float64; texts of equal length share a batch."""
    exact, plain = (FrozenEncoder(*tiny_model("gemma2"), num_layers=3, dtype=dtype) for dtype in ("float64", "float32"))
    vectors = exact.encode(TEXTS).vectors

    torch.testing.assert_close(vectors, plain.encode(TEXTS).vectors.double(), atol=ROUNDING, rtol=0)


def test_vectors_with_nan_are_an_error():
    encoder = FrozenEncoder(*tiny_model("prophetnet"), num_layers=3, dtype="float64")
    with pytest.raises(ValueError, match=r"NaN or infinite values in torch.float64\. Set dtype .* 'float32'"):
        encoder.encode(TEXTS)


TOLERANCE = 1e-6

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


def corpus(family="t5"):
    """Real pairs of at most eight words, one of more than 64 tokens, and one with the family's special tokens in it."""
    candidates, references = real_pairs(3, words=8)
    specials = KINDS[EVERY_FAMILY[family]].specials
    words = zip(candidates[0].split(), specials, strict=False)
    between = " ".join(f"{word} {token}" for word, token in words)
    long = " ".join(8 * references)
    return [*candidates[:2], long, between], [*references, f"{references[0]} {specials[0]} it"]


def ours(encoder, candidates, references, **options):
    """Precision, recall and F1, shape (3, pairs) or (3, layers, pairs)."""
    scores = bert_score(candidates, references, encoder, **options)
    return torch.stack([*scores.values()])


def scorer_of_reference_package(family, folder, idf_sents):
    """A scorer of the last layer or of all, with the weights of some texts or without: see ``expected_scores``."""
    scorer = oracle_package.BERTScorer(folder, num_layers=LAST, all_layers=True, nthreads=0, device="cpu")
    tokenizer = scorer._tokenizer
    if family in PREFIX_SPACE:
        tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    if tokenizer.pad_token is None:  # it fails without one; batches of one text need no padding
        tokenizer.pad_token = tokenizer.eos_token
    if family == "big_bird":  # its attention depends on earlier texts; reset before every text
        scorer._model.register_forward_pre_hook(lambda model, _: model.set_attention_type("block_sparse"))
    scorer.compute_idf(idf_sents)
    return scorer


def expected_scores(scorer, candidates, references, *, idf=False, all_layers=False):
    """Scores of the reference package by a model that is loaded once, because its last layer is never cut."""
    scorer._idf = idf
    scorer.all_layers = all_layers
    return torch.stack(scorer.score(candidates, references, batch_size=1))


@pytest.mark.filterwarnings("ignore:.*longer than 64 tokens", "ignore:.*contains? special tokens")
def test_scores_equal_the_reference_package(family, tiny):
    candidates, references = corpus(family)
    scorer = scorer_of_reference_package(family, tiny.folder, references)

    weighted = ours(tiny.load(), candidates, references, idf=True)
    scores = ours(tiny.load(all_layers=True), candidates, references)

    expected = expected_scores(scorer, candidates, references, idf=True)
    torch.testing.assert_close(weighted, expected, atol=TOLERANCE, rtol=0)
    # BigBird's sparse attention leaves padding on all states but the last, and the package fails for all layers.
    all_layers = family != "big_bird"
    expected = expected_scores(scorer, candidates, references, all_layers=all_layers)
    if not all_layers:
        scores = scores[:, LAST]
    elif family in FINAL_NORM:
        # The reference package has the norm on single layers, but among all layers on the last one only.
        scores = scores[:, LAST]
        expected = expected[:, LAST]
    torch.testing.assert_close(scores, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.filterwarnings("ignore:.*longer than 64 tokens", "ignore:.*contains? special tokens")
def test_scores_of_bytes_equal_the_reference_package(tmp_path):
    """ByT5: a T5 whose tokenizer is written in Python."""
    folder = str(tmp_path / "byt5")
    randomised(T5Model(tiny_config("t5", vocab_size=384))).save_pretrained(folder)
    ByT5Tokenizer(model_max_length=64).save_pretrained(folder)
    candidates, references = corpus()
    scorer = scorer_of_reference_package("byt5", folder, references)

    for idf, all_layers in ((True, False), (False, True)):
        expected = expected_scores(scorer, candidates, references, idf=idf, all_layers=all_layers)
        encoder = FrozenEncoder(folder, num_layers=LAST, all_layers=all_layers)
        with pytest.warns(UserWarning, match="^1 candidate scored 0"):
            scores = ours(encoder, [*candidates, ""], [*references, "a"], idf=references if idf else False)
        torch.testing.assert_close(scores[..., :-1], expected, atol=TOLERANCE, rtol=0)
        assert not scores[..., -1].any()


def test_vectors_equal_plain_transformers(family, tiny):
    texts = [text for side in corpus(family) for text in side]
    plain = plain_encoder(tiny.model.base_model)
    layers = []
    for text in texts:
        if family in PREFIX_SPACE:
            text = f" {text}"
        ids = torch.tensor([tiny.tokenizer(text, truncation=True)["input_ids"]])
        if family == "big_bird":
            # Copy it again, because it remembers its last text.
            plain = plain_encoder(tiny.model.base_model)
        with torch.no_grad():
            output = plain(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
            states = torch.cat([state[:, : ids.shape[1]] for state in output.hidden_states])  # (layers, tokens, width)
            torch.testing.assert_close(states[-1], output.last_hidden_state[0])
            if family in FINAL_NORM:
                states[:-1] = plain.get_submodule(FINAL_NORM[family])(states[:-1])
        layers.append(states)
    expected = normalize(torch.cat(layers, 1), dim=-1)  # (layers, tokens, width)

    for options in (*({"num_layers": layer} for layer in SINGLE_LAYERS), {"all_layers": True}, UP_TO_FIRST):
        encoder = tiny.load(**options)
        encoded = encoder.encode(texts)
        assert encoded.texts.lengths.max() == 64
        wanted = expected[: encoder.num_layers + 1][-encoder.num_outputs :]
        torch.testing.assert_close(encoded.vectors, wanted, atol=ROUNDING, rtol=0)

    assert encoder._backbone.loaded(torch.device("cpu")).batching == FAMILIES[family].batching
