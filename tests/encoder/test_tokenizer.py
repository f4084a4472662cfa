"""Token ids of texts, and texts that are longer than the encoder: cut, refused, or in windows."""

import base64
import copy
import json
import subprocess
import warnings
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import import_protobuf

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.callbacks import Seq2SeqGenerate
from bertscore_tm.encoder.identity import ModelSource
from bertscore_tm.encoder.loading import load_tokenizer
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.matching.vectors import TokenizedTexts
from examples.research.benchmarks.processes import peak_growth
from tests.support.models import EVERY_FAMILY, KINDS, tiny_config, tiny_model, tiny_tokenizer, windows_of
from tests.support.texts import real_pairs


@pytest.fixture(scope="module")
def make_tokenizer(minilm):
    """Return a tokenizer of the real model with some settings."""
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    config = AutoConfig.from_pretrained(minilm)
    return lambda **settings: TextTokenizer(tokenizer, config, **settings)


def test_ids_equal_those_of_the_tokenizer(make_tokenizer, pairs):
    tokenizer = make_tokenizer()
    tokenized = tokenizer([f"  {text}\n" for text in pairs[1]])

    assert tokenized.rows() == [tokenizer.tokenizer.encode(text) for text in pairs[1]]
    assert tokenized.has_content.all()
    assert tokenized.num_truncated == 0
    nothing = tokenizer([])
    assert (nothing.rows(), nothing.has_content.tolist(), nothing.num_truncated) == ([], [], 0)


@pytest.mark.parametrize("prefix_space", [None, True, False])
@pytest.mark.parametrize(
    ("family", "has_space"),
    [("roberta", True), ("gpt2", True), ("opt", True), ("bart", False), ("deberta", False), ("longformer", False)],
)
def test_only_roberta_and_gpt2_get_a_space_before_texts(family, has_space, prefix_space):
    tokenizer = tiny_tokenizer(EVERY_FAMILY[family])
    tokenized = TextTokenizer(tokenizer, tiny_config(family), prefix_space=prefix_space)(["hello", ""])
    spaced = tokenizer.encode(" hello")
    plain = tokenizer.encode("hello")

    assert spaced != plain
    expected = has_space if prefix_space is None else prefix_space
    assert tokenized.rows() == [spaced if expected else plain, tokenizer.encode("")]
    assert tokenized.has_content.tolist() == [True, False]


def test_a_tokenizer_without_a_and_without_an_unknown_token():
    tokenizer = Tokenizer(models.BPE({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "C": 3, "G": 4, "CG": 5}, [("C", "G")]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    bases = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    encoder = FrozenEncoder(tiny_model("bert")[0], bases, num_layers=2, exclude_special_tokens=True)

    assert encoder.tokenizer.special_affixes == ([1], [2])
    assert encoder.encode(["CGC", "G", "a"]).texts.lengths.tolist() == [2, 1, 0]


def test_truncation_keeps_special_tokens_and_is_counted(make_tokenizer):
    tokenized = make_tokenizer(max_length=4)(["a b c d e", "a b", "", "x y z"])

    assert tokenized.lengths.tolist() == [4, 4, 2, 4]
    assert all(ids[0] == 101 and ids[-1] == 102 for ids in tokenized.rows())
    assert tokenized.num_truncated == 2


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_over_the_limit_are_cut_as_by_the_tokenizer(kind, side):
    """With special tokens before, after or around a text, or none, and some written in it."""
    tokenizer = copy.deepcopy(tiny_tokenizer(kind))
    tokenizer.truncation_side = side
    texts = [f"{KINDS[kind].specials[0]} {text}" for text in real_pairs(4)[1]]
    tokenized = TextTokenizer(tokenizer, AutoConfig.for_model("t5", vocab_size=len(tokenizer)), max_length=9)(texts)

    assert tokenized.rows() == tokenizer(texts, truncation=True, max_length=9)["input_ids"]
    assert tokenized.lengths.tolist() == [9] * len(texts)


def content_of(tokenizer, text):
    """Return the ids of a text without the special tokens that the tokenizer adds."""
    encoded = tokenizer(text, return_special_tokens_mask=True)
    marks = encoded["special_tokens_mask"]
    return {i for i, mark in zip(encoded["input_ids"], marks, strict=False) if not mark}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_the_backend_are_those_of_the_tokenizer(kind):
    """Also where the tokenizer was left with truncation and padding, and where special tokens are split."""
    tokenizer = copy.deepcopy(tiny_tokenizer(kind))
    config = AutoConfig.for_model("t5", vocab_size=len(tokenizer))
    written = [f"{text} {' '.join(tokenizer.all_special_tokens)} {text}" for text in real_pairs(4)[1]]

    for texts in (["", " ", *written, "\u00e9\ud800\n\U0001f600"], []):
        for splits in (False, True):
            if splits and not tokenizer.is_fast:
                continue
            tokenizer.split_special_tokens = splits
            ours = TextTokenizer(copy.deepcopy(tokenizer), config, max_length=500)
            assert ours._has_usual_backend == tokenizer.is_fast
            pads = tokenizer.pad_token is not None
            ours.tokenizer(["a b c d e f g", "a"], truncation=True, max_length=4, padding=pads)
            tokenized = ours(texts)
            prepared = ours.prepare(texts)
            expected = [tokenizer(text)["input_ids"] for text in prepared]
            assert tokenized.rows() == expected
            for text, has_content in zip(prepared, tokenized.has_content.tolist(), strict=True):
                assert has_content == bool(content_of(tokenizer, text) - set(ours.unweighted_ids))


class LowerCase(PreTrainedTokenizerFast):
    def _encode_plus(self, text, *args, **options):
        lower = [part.lower() for part in text] if isinstance(text, list) else text.lower()
        return super()._encode_plus(lower, *args, **options)


def test_a_class_of_the_user_is_called(pairs):
    tokenizer = LowerCase(tokenizer_object=tiny_tokenizer("bytes").backend_tokenizer)
    ours = TextTokenizer(tokenizer, AutoConfig.for_model("t5", vocab_size=len(tokenizer)))

    assert not ours._has_usual_backend
    assert ours(["A CAT"]).rows() == ours(["a cat"]).rows() == [tokenizer("a cat")["input_ids"]]


def test_truncation_off_is_an_error_that_shows_the_text(make_tokenizer):
    tokenizer = make_tokenizer(max_length=4, long_text="error")

    assert tokenizer(["a b"]).num_truncated == 0
    with pytest.raises(ValueError, match=r"'a b c d'.* has 6 tokens, the limit is 4.*long_text .*'truncate'"):
        tokenizer(["a b", "a b c d"])


@pytest.mark.parametrize(("declared", "limit"), [(100, 100), (10**30, 512), (2000, 512)])
def test_the_limit_is_the_smaller_of_tokenizer_and_positions(minilm, declared, limit):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.model_max_length = declared

    assert TextTokenizer(tokenizer, AutoConfig.from_pretrained(minilm)).max_length == limit


@pytest.mark.parametrize("long_text", ["truncate", "window", "error"])
@pytest.mark.parametrize("declared", [2, 0, -1])
def test_a_tokenizer_limit_too_small_for_text_is_an_error(minilm, declared, long_text):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    config = AutoConfig.from_pretrained(minilm)
    tokenizer.model_max_length = declared

    with pytest.raises(ValueError, match=f"the limit of {declared} tokens.*no room .* 2 special tokens. Pass max_leng"):
        TextTokenizer(tokenizer, config, long_text=long_text)
    assert TextTokenizer(tokenizer, config, long_text=long_text, max_length=3).max_length == 3


def test_relative_positions_have_the_tokenizers_limit_or_none():
    model, tokenizer = tiny_model("deberta")

    assert TextTokenizer(tokenizer, model.config).max_length == 64
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, cls_token="<s>", sep_token="</s>")
    unlimited = TextTokenizer(tokenizer, model.config)
    assert unlimited.max_length is None
    assert len(unlimited(["a " * 900]).ids) > 800


def test_special_ids(make_tokenizer):
    tokenizer = make_tokenizer()

    assert tokenizer.special_affixes == ([101], [102])
    assert tokenizer.unweighted_ids == [101, 102]
    assert tokenizer.control_ids == [0, 101, 102]
    assert tokenizer.end_ids == [102]
    assert tokenizer.vocab_size == 30522
    assert tokenizer.tokens([101, 1037, 102]) == ["[CLS]", "a", "[SEP]"]


def test_written_special_tokens_are_no_control_of_the_score(make_tokenizer):
    tokenized = make_tokenizer()(["[SEP]", "a [SEP] b"])

    assert tokenized.rows() == [[101, 102, 102], [101, 1037, 102, 1038, 102]]
    assert tokenized.has_content.tolist() == [False, True]


# Normalization of SentencePiece: a rule for the no-break space and one for the ellipsis, as its trainer writes them.
_CHARSMAP = (
    b"c-j@yWsr~s5C-6Hju=`RDd~n&LP}7&yHiR^r5lURqmMq|sH3}4>Ohfhl<r0v6$yE6XP()2c4mL=Y!EvLf<&=`=&+C=GENXvg9b%}1W}2DAViL95T"
    b"AG?Bms$IR``G<BqJ#)NKPtJl7`fz<wMewj*Mg=6CaU<>)|0mHa#mj$WAVDl84;nBQFKW&&PyPkWVN~AwH!D#VAS%it`yIDNQN9;B(4ShVqo7A{D4"
    b"iC8|<|>Qtj9HK<K3>QaaL)T1E{XiOuT(uC$Tqa`h9#h0|9HSK6id%mJ09q3FazTs=S@GafwN)Nizi=OnMH~r|#0Q&PC1NnjP`H3GH9CLJrGKAp_V"
    b"<aOO%_zn)hH->3f$>aYB2$>mRKl6gG-fh`+00@N5zJ#Q^ND033s}q|mJr1<ma>B7tYRf=Sj{@tvVrw%Vk2AF%r>_2Guzq0FYIC`d)UohqWP75?B_"
    b"QQ@H>Y%$Po^6jH8_3IHx$t8BX&DXF128T;M#HxX2YQbB(Lqi1`C<ag#gT<{o!>z<vJWA&+^)Q=aggXT0PE|L`}j_?OrG$6Ma;KkvvKgocI&?*U?E"
    b"hDZ"
)


def write_sentencepiece(folder, charsmap):
    """Write a SentencePiece file with the pieces of a tiny tokenizer."""
    proto = import_protobuf().ModelProto()
    vocabulary = json.loads(tiny_tokenizer("deberta-v2").backend_tokenizer.to_str())["model"]["vocab"]
    for number, (piece, score) in enumerate(vocabulary):
        kind = 1
        if piece == "[UNK]":
            kind = 2
        elif number < 4:
            kind = 3  # a special token
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.model_type = 1
    proto.trainer_spec.unk_id = tiny_tokenizer("deberta-v2").unk_token_id
    proto.normalizer_spec.precompiled_charsmap = charsmap
    (folder / "spm.model").write_bytes(proto.SerializeToString())


def write_tokenizer_file(folder, charsmap):
    """Write a tokenizer.json as that of transformers 4."""
    backend = Tokenizer.from_str(tiny_tokenizer("deberta-v2").backend_tokenizer.to_str())
    collapse = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(charsmap), collapse])
    backend.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        pytest.param(
            *("DebertaV2", write_sentencepiece),
            marks=pytest.mark.skipif(find_spec("sentencepiece") is None, reason="sentencepiece is not installed"),
        ),
        ("DebertaV2", write_tokenizer_file),
        ("BigBird", write_tokenizer_file),
        ("MBart", write_tokenizer_file),
    ],
)
def test_texts_are_normalized_as_the_sentencepiece_file_says(kind, write, tmp_path):
    write(tmp_path, zlib.decompress(base64.b85decode(_CHARSMAP)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{kind}Tokenizer"}))
    AutoConfig.for_model("deberta-v2").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(ModelSource.from_name(str(tmp_path)))

    assert type(tokenizer).__name__ == f"{kind}Tokenizer"
    for text, plain in (("a\u00a0cat sat", "a cat sat"), ("the cat\u2026", "the cat...")):
        assert tokenizer.tokenize(text) == tokenizer.tokenize(plain)


def test_the_tokenizer_file_wins_over_a_sentencepiece_file(tmp_path):
    write_sentencepiece(tmp_path, zlib.decompress(base64.b85decode(_CHARSMAP)))
    file = write_folder(tmp_path, "DebertaV2", "deberta-v2", "deberta-v2", "no normalizer")
    tokenizer = load_tokenizer(ModelSource.from_name(str(tmp_path)))

    assert tokenizer("the cat\u2026")["input_ids"] == file.encode("the cat\u2026").ids
    assert tokenizer.tokenize("the cat\u2026") != tokenizer.tokenize("the cat...")


def test_a_word_over_the_limit_of_wordpiece_is_named_once(minilm):
    """It is one unknown token, so that different texts of a script without spaces have an F1 of 1."""
    encoder = FrozenEncoder(minilm, num_layers=2)
    words = " ".join(["the cat sat on the mat and looked at the rain"] * 3)
    thai = ["\u0e01\u0e32" * 64, "\u0e21\u0e32" * 62]
    expected = r"^the word .* has 12[48] letters, and words of more than 100 .* with spaces"

    with (
        pytest.warns(UserWarning, match=expected),
        pytest.warns(UserWarning, match="^55% of the characters are unknown"),
    ):
        scores = bert_score([f"{words} {thai[0]}"], [f"{words} {thai[1]}"], encoder)
    assert scores["f1"].item() == pytest.approx(1)
    with warnings.catch_warnings(action="error"):
        encoder.encode([f"{words} {thai[0]}"])
        # Each of these characters is a word.
        FrozenEncoder(minilm, num_layers=2).encode(["\u6771" + "\u4eac" * 120])


# Files of tokenizers whose class in transformers 5 ignores a part of them.

TEXTS = [
    "The Caf\u00e9's  3rd  \uff21\uff22 cost 1,234: na\u00efve \u65e5\u672c\u8a9e!",
    "a cat  sat on the mat",
    "A\tB",
]
OTHER_PARTS = {
    "nothing": lambda tokenizer: None,
    "normalizer": lambda tokenizer: setattr(
        tokenizer, "normalizer", normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    ),
    "pre-tokenizer": lambda tokenizer: setattr(
        tokenizer,
        "pre_tokenizer",
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]),
    ),
    "template": lambda tokenizer: setattr(
        tokenizer,
        "post_processor",
        processors.TemplateProcessing(single="$A e", special_tokens=[("e", tokenizer.token_to_id("e"))]),
    ),
}
# Class, type of the model, and the kind of its file.
FILES = [
    *(("Roberta", "roberta", "bytes"), ("Roberta", "roberta", "wordpiece"), ("GPT2", "gpt2", "wordpiece")),
    *(("Llama", "llama", "llama"), ("Llama", "llama", "t5"), ("Gemma", "gemma", "gemma"), ("Gemma", "gemma", "t5")),
    *(("XLMRoberta", "xlm-roberta", "xlm-roberta"), ("T5", "t5", "t5"), ("Albert", "albert", "albert")),
    *(("XLNet", "xlnet", "xlnet"), ("DebertaV2", "deberta-v2", "deberta-v2"), ("BigBird", "big_bird", "big-bird")),
    *(("Camembert", "camembert", "camembert"), ("Pegasus", "pegasus", "t5"), ("Qwen2", "qwen2", "qwen")),
    *(("Bart", "bart", "bytes"), ("Longformer", "longformer", "bytes"), ("Deberta", "deberta", "deberta")),
    *(("GPTNeoX", "gpt_neox", "olmo"), ("Bert", "bert", "wordpiece"), ("MPNet", "mpnet", "mpnet")),
]


def write_folder(folder, kind, file_kind, model_type, part="nothing", **settings):
    """Write a tokenizer.json of a kind with another part, for a class, and return it."""
    tokenizer = Tokenizer.from_str(tiny_tokenizer(file_kind).backend_tokenizer.to_str())
    if part == "no normalizer":
        tokenizer.normalizer = None
    else:
        OTHER_PARTS[part](tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings |= {"tokenizer_class": f"{kind}Tokenizer", **KINDS[file_kind].roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    AutoConfig.for_model(model_type).save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("part", OTHER_PARTS)
@pytest.mark.parametrize(("kind", "model_type", "file_kind"), FILES)
def test_tokens_are_those_of_the_file(kind, model_type, file_kind, part, tmp_path):
    """Also of transformers 4.57.6, except the last part of Llama, Gemma and GPT-NeoX, which it makes itself."""
    if kind in ("Bert", "MPNet") and part == "normalizer":
        part = "nothing"  # the file has the normalizer of BERT
    file = write_folder(tmp_path, kind, file_kind, model_type, part)
    tokenizer = load_tokenizer(ModelSource.from_name(str(tmp_path)))

    # Those of BART and Longformer are RoBERTa's.
    assert type(tokenizer).__name__ in (f"{kind}Tokenizer", "RobertaTokenizer")
    for text in TEXTS:
        ids = file.encode(text).ids
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == file.decode(ids, skip_special_tokens=False)
    generator = Seq2SeqGenerate(tmp_path).tokenizer
    assert generator(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.filterwarnings("ignore:.*longer than 60 tokens")
def test_scores_of_a_folder_are_those_of_its_file(tmp_path):
    model = tiny_model("roberta")[0]
    model.save_pretrained(tmp_path)
    file = write_folder(tmp_path, "Roberta", "wordpiece", "roberta")
    model.save_pretrained(tmp_path)
    whole = PreTrainedTokenizerFast(tokenizer_object=file, model_max_length=64, **KINDS["wordpiece"].roles)
    pairs = real_pairs(3)
    expected = bert_score(*pairs, FrozenEncoder(model, whole, num_layers=2, max_length=60))["f1"]

    assert torch.equal(bert_score(*pairs, FrozenEncoder(tmp_path, num_layers=2, max_length=60))["f1"], expected)


def test_tokenizers_whose_class_and_file_agree_do_not_change(minilm, tmp_path):
    plain = AutoTokenizer.from_pretrained(minilm)
    ours = load_tokenizer(ModelSource.from_name(minilm))

    assert ours.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
    for family in EVERY_FAMILY:
        folder = tmp_path / family
        saved = tiny_tokenizer(EVERY_FAMILY[family])
        saved.save_pretrained(folder)
        AutoConfig.for_model(family).save_pretrained(folder)
        assert load_tokenizer(ModelSource.from_name(str(folder)))(TEXTS)["input_ids"] == saved(TEXTS)["input_ids"]


def test_the_configuration_decides_as_in_all_versions(tmp_path):
    """Capitals of BERT, spaces before texts, and the source language of a translator."""
    write_folder(tmp_path, "Bert", "wordpiece", "bert", do_lower_case=False)
    bert = load_tokenizer(ModelSource.from_name(str(tmp_path)))

    assert bert.tokenize("CAT") != bert.tokenize("cat")
    write_folder(tmp_path, "Roberta", "bytes", "roberta", add_prefix_space=True)
    roberta = load_tokenizer(ModelSource.from_name(str(tmp_path)))
    assert roberta("cat")["input_ids"] == tiny_tokenizer("bytes")(" cat")["input_ids"]
    write_folder(tmp_path, "MBart", "mbart", "mbart", "template", src_lang="de_DE")
    mbart = load_tokenizer(ModelSource.from_name(str(tmp_path)))
    assert mbart.tokenize("cat", add_special_tokens=True)[-2:] == ["</s>", "de_DE"]


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_class_of_other_code_is_compared_with_its_file(is_fast, tmp_path):
    write_folder(tmp_path, "ByT5", "wordpiece", "t5")
    if is_fast:
        (tmp_path / "lower_case.py").write_text(
            "from tokenizers.normalizers import Lowercase\n"
            "from transformers import PreTrainedTokenizerFast\n\n\n"
            "class OwnLowerCase(PreTrainedTokenizerFast):\n"
            "    def __init__(self, **options):\n"
            "        super().__init__(**options)\n"
            "        self.backend_tokenizer.normalizer = Lowercase()\n"
        )
        settings = {"tokenizer_class": "OwnLowerCase", "auto_map": {"AutoTokenizer": [None, "lower_case.OwnLowerCase"]}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    source = ModelSource.from_name(str(tmp_path), trust_remote_code=True)

    with pytest.warns(UserWarning, match=r"splits .* into .*, but its tokenizer\.json into .*pass tokenizer="):
        load_tokenizer(source)
    with warnings.catch_warnings(action="error"):
        load_tokenizer(source)


def long_text(words: int) -> str:
    """Real words in shuffled order, without repetition of whole sentences."""
    source = (torch.__doc__ or "").split() + (subprocess.__doc__ or "").split()
    places = [(i * 7 + i // len(source)) % len(source) for i in range(words)]
    return " ".join(source[place] for place in places)


@settings(max_examples=150, deadline=None)
@given(length=st.integers(0, 60), room=st.integers(1, 12))
def test_every_token_comes_from_the_window_with_most_context(make_tokenizer, length, room):
    tokenizer = make_tokenizer(max_length=room + 2, long_text="window")
    content = list(range(1000, 1000 + length))
    ids = [101, *content, 102]
    facts = np.array([len(ids)]), np.array([length > 0]), np.array([False]), np.array([0]), np.array([0])
    windows = windows_of(TokenizedTexts(np.array(ids), *facts), tokenizer)
    if length <= room:
        assert windows == [(ids, [*range(len(ids))])]
        return
    starts = sorted({*range(0, length - room, max(room // 2, 1)), length - room})

    expected = [[101, *content[start : start + room], 102] for start in starts]

    assert [window for window, _ in windows] == expected
    owner = {}
    for number, (window, tokens) in enumerate(windows):
        for i, token in zip(window, tokens, strict=True):
            if token >= 0:
                assert token not in owner
                owner[token] = number
                assert i == ids[token]
    assert sorted(owner) == list(range(len(ids)))
    assert (owner[0], owner[len(ids) - 1]) == (0, len(windows) - 1)
    for token in range(length):
        # Slowly: the distance to the nearer end, in each window that holds the token.
        context = {n: min(token - s, s + room - 1 - token) for n, s in enumerate(starts) if s <= token < s + room}
        best = max(context.values())
        assert owner[token + 1] == min(n for n, c in context.items() if c == best)


def test_a_long_document_scores_in_bounded_memory():
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, long_text="window")
    document = long_text(4_500)
    beginning = long_text(4_450)
    bert_score([long_text(400)], [long_text(390)], encoder)
    scores = {}

    peak = peak_growth(lambda: scores.update(bert_score([document], [beginning], encoder)))

    assert len(encoder.tokenizer([document]).ids) > 7_600
    assert 0.95 < scores["f1"].item() <= 1
    # The matrix of similarities alone would take more than 230 MB.
    assert peak < 100e6
