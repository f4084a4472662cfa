"""VocabularyBridge: exact where tokenizers agree, and elsewhere what slow loops over real tokenizers give."""

import copy
import json
import pickle
from functools import cache

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModel, AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.losses.soft.bridge import VocabularyBridge, embed_texts
from bertscore_tm.losses.soft.pieces import decode_tokens
from bertscore_tm.losses.soft.predictions import GeneratorVocabulary, SoftTokens, expand_to_pieces
from bertscore_tm.scoring.idf import token_weights
from tests.support.generators import ROLES, SPECIALS, TEXTS, generator, texts_to_train_on
from tests.support.models import EVERY_FAMILY, KINDS, padded, tiny_config, tiny_model, tiny_tokenizer
from tests.support.soft_predictions import COMPONENTS, CPU, IGNORE, MATCHINGS, certain, content_ids, noise, tiny
from tests.support.texts import real_pairs, several_references


def wrapped(content, roles, **options):
    """A tokenizer of transformers from what a tokenizer file holds."""
    tokenizer = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles, **options)


def content_of(kind):
    """What the file of a tiny tokenizer holds."""
    return json.loads(tiny_tokenizer(kind).backend_tokenizer.to_str())


def like(kind, change=None):
    """A tiny tokenizer that decodes, with something changed."""
    content = content_of(kind)
    if change is not None:
        change(content)
    return wrapped(content, KINDS[kind].roles)


def cut_to(texts, tokenizer):
    """A WordPiece tokenizer whose vocabulary is cut to the pieces of some texts, as for a small domain."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    names = tokenizer.convert_ids_to_tokens(sorted({i for row in tokenizer(texts)["input_ids"] for i in row}))
    roles = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    specials = sorted({*roles.values()})
    vocabulary = {name: i for i, name in enumerate([*specials, *(name for name in names if name not in specials)])}
    content["model"]["vocab"] = vocabulary
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    content["post_processor"] = None
    return wrapped(content, roles)


def vocabulary_of(bridge):
    return GeneratorVocabulary.of_bridge(bridge, bridge.encoder, token_weights(bridge.encoder), CPU)


def test_numbers_with_gaps(encoder):
    words = ["cat", "handcuffed", *(f"{number} cats" for number in range(20))]
    vocabulary = {"<unk>": 1, "<pad>": 4} | {word: 7 + 2 * i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    bridge = VocabularyBridge(wrapped_tokenizer, encoder)

    assert bridge.vocab_size == 50 > len(wrapped_tokenizer)
    assert bridge.control_ids == [i for i in range(50) if i not in vocabulary.values() or i in (1, 4)]
    assert_certain_value_of_the_text(bridge, ["cat handcuffed cat"])


def test_tokenizers_written_in_python(encoder):
    tokenizer = ByT5Tokenizer()

    assert not tokenizer.is_fast
    assert_certain_value_of_the_text(VocabularyBridge(tokenizer, encoder, "expand"), ["a b"])
    with torch.random.fork_rng(devices=[]):
        model = AutoModel.from_config(tiny_config("t5", vocab_size=len(tokenizer)))
    slow = FrozenEncoder(model, tokenizer, num_layers=1)
    bridge = VocabularyBridge(generator("byte-bpe"), slow, "expand")
    assert_certain_value_of_the_text(bridge, [text for text in TEXTS if text.isascii()])
    assert VocabularyBridge(ByT5Tokenizer(), slow).mode == "identity"
    assert VocabularyBridge(ByT5Tokenizer(extra_ids=3), slow, min_fidelity=0).mode != "identity"


def context_after(character, is_first):
    """Return the number of a piece's context: the start of a text, or after a space, a letter or another character."""
    if is_first:
        return 0
    if character.isspace():
        return 1
    if character.isalnum():
        return 2
    return 3


@pytest.mark.parametrize("family", ["bert", "deberta", "xlm-roberta"])
def test_plain_loop(family):
    encoder = tiny(family)
    bridge = VocabularyBridge(generator("byte-bpe"), encoder, "expand")
    ids = torch.nn.functional.pad(ids_of(bridge.generator_tokenizer, TEXTS), (1, 1), value=IGNORE)
    is_control = torch.isin(ids, torch.tensor(bridge.control_ids))
    content = (ids != IGNORE) & ~is_control
    ids = ids.clamp(min=0)
    content &= ~bridge.pieces.ambiguous[ids]
    # Uncertain predictions, whose likeliest token is the label.
    probabilities = (noise(bridge, *ids.shape, scale=1.0, dtype=torch.float64) + certain(bridge, ids, 9.0)).softmax(-1)
    y = probabilities @ bridge.embedding_table(CPU).double()
    content[0, 6] = False
    table = embedding_table(encoder, CPU)
    mean = bridge.embedding_table(CPU)
    texts = decode_tokens(bridge.generator_tokenizer, list(range(bridge.vocab_size)))
    size = encoder.tokenizer.vocab_size
    encoder_weights = torch.rand(size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given = token_weights(encoder, dict(enumerate(encoder_weights.tolist())))
    pieces = bridge.pieces
    vocabulary = GeneratorVocabulary.of_bridge(bridge, encoder, given, CPU)
    average = pieces.average_weights(encoder_weights)
    weights = probabilities @ average - 0.3
    soft = expand_to_pieces(SoftTokens(y, content, weights), ids, vocabulary)

    for row in range(len(ids)):
        vectors = []
        of_pieces = []
        for t in range(ids.shape[1]):
            if not content[row, t]:
                continue
            k = int(ids[row, t])
            before = " "
            if content[row, t - 1]:
                before = texts[int(ids[row, t - 1])].replace("\ufffd", "")
            place = 4 * k + context_after(before[-1], is_first=not vectors)
            for piece in pieces.pieces[pieces.offsets[place] : pieces.offsets[place + 1]]:
                vectors.append(y[row, t] + table[piece] - mean[k])
                of_pieces.append((weights[row, t] - average[k] + encoder_weights[piece]).clamp(min=0))
        assert soft.content[row].sum() == len(vectors)
        torch.testing.assert_close(soft.embeddings[row][soft.content[row]], torch.stack(vectors))
        torch.testing.assert_close(soft.weights[row][soft.content[row]], torch.stack(of_pieces))


def test_auto_leaves_out_what_changes_nothing():
    # Words that are one piece each, wherever they stand, though the vocabularies differ.
    encoder = tiny("bert")
    names = [name for name in encoder.tokenizer.vocabulary if name.isalpha() and name.islower() and len(name) > 3]
    specials = [*SPECIALS, "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate([*specials, *names])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(specials)
    wrapped_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **ROLES)
    bridge = VocabularyBridge(wrapped_tokenizer, encoder)

    assert bridge.mode == "mean"
    assert_certain_value_of_the_text(bridge, [" ".join(names[:5]), names[7]])


def test_auto_takes_the_pieces_of_a_cut_vocabulary_by_name(encoder):
    # "##ly" is one piece within a word, and several at the start of a text, where it does not occur.
    texts = texts_to_train_on()
    tokenizer = cut_to(texts, encoder.tokenizer.tokenizer)

    assert "##ly" in tokenizer.get_vocab()
    assert len(encoder.tokenizer(["ly"]).rows()[0]) > 3
    bridge = VocabularyBridge(tokenizer, encoder)
    assert bridge.mode == "mean"
    assert_certain_value_of_the_text(bridge, texts)
    assert bridge.fidelity(texts[:20]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("change", ["another token", "another normalizer"])
def test_auto_expands_where_names_do_not_prove_the_pieces(encoder, change):
    tokenizer = cut_to(real_pairs(60)[0], encoder.tokenizer.tokenizer)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    if change == "another token":
        content["model"]["vocab"]["catsat"] = len(content["model"]["vocab"])
    else:
        content["normalizer"]["lowercase"] = False

    assert VocabularyBridge(wrapped(content, tokenizer.special_tokens_map), encoder).mode == "expand"


def assert_certain_value_of_the_text(bridge, texts):
    soft = embed_texts(texts, bridge, vocabulary_of(bridge))
    for text, embeddings, content in zip(texts, soft.embeddings, soft.content, strict=True):
        expected = embedding_table(bridge.encoder, CPU)[content_ids(bridge.encoder, [text])[0]]
        torch.testing.assert_close(embeddings[content], expected, atol=1e-6, rtol=0)


def test_fidelity_rises_from_mean_to_expand_to_identity(encoder):
    texts = real_pairs(240)[0][:12]
    mean, expand = (VocabularyBridge(generator("byte-bpe"), encoder, mode) for mode in ("mean", "expand"))

    assert mean.fidelity(texts) < expand.fidelity(texts) < 1 - 1e-5
    identity = VocabularyBridge(like("wordpiece"), tiny("bert"))
    assert identity.fidelity([*TEXTS, "a long text " * 40]) == pytest.approx(1, abs=1e-5)


def test_wrong_arguments(encoder):
    with pytest.raises(ValueError, match="mode='merge' is not one of 'auto', 'identity'"):
        VocabularyBridge(generator("words"), encoder, "merge")
    with pytest.raises(TypeError, match="must be a tokenizer of transformers, got a Tokenizer"):
        VocabularyBridge(Tokenizer(models.BPE()), encoder)
    for texts in ([], "a cat"):
        with pytest.raises(ValueError, match="texts must be a list of at least one text, got"):
            VocabularyBridge(like("wordpiece"), tiny("bert")).fidelity(texts)


@pytest.mark.filterwarnings("ignore:texts score 0.* against themselves through the bridge")
@pytest.mark.parametrize("mode", ["mean", "expand"])
def test_made_in_inference_mode_and_trained_with(mode):
    with torch.inference_mode():
        bridge = VocabularyBridge(generator("words"), tiny("gpt2"), mode, min_fidelity=0)
        loss = SoftBERTScoreLoss(bridge.encoder, bridge, fidelity_texts=TEXTS)
    logits = torch.zeros(3, 4, bridge.vocab_size, dtype=torch.float64, requires_grad=True)
    loss(logits, TEXTS).backward()

    assert logits.grad.any()
    assert loss(logits, TEXTS, torch.zeros(3, 4, dtype=torch.bool)) == 1


def renumber(content):
    """Give all tokens other numbers."""
    vocab = content["model"]["vocab"]
    order = torch.randperm(len(vocab), generator=torch.Generator().manual_seed(1)).tolist()
    if content["model"]["type"] == "Unigram":
        names = [name for name, _ in vocab]
        content["model"]["vocab"] = [vocab[order.index(i)] for i in range(len(vocab))]
        numbers = dict(zip(names, order, strict=True))
        content["model"]["unk_id"] = order[content["model"]["unk_id"]]
    else:
        numbers = content["model"]["vocab"] = {name: order[i] for name, i in vocab.items()}
    for added in content["added_tokens"]:
        added["id"] = numbers[added["content"]]
    content["added_tokens"].sort(key=lambda added: added["id"])
    for name, special in content["post_processor"]["special_tokens"].items():
        special["ids"] = [numbers[name]]


def test_the_encoders_own_tokenizer_shares_the_table(encoder, minilm):
    bridge = VocabularyBridge(AutoTokenizer.from_pretrained(minilm), encoder)

    assert bridge.mode == "identity"
    assert bridge.embedding_table(CPU).data_ptr() == embedding_table(encoder, CPU).data_ptr()
    assert bridge.control_ids == encoder.tokenizer.control_ids
    assert bridge.end_ids == encoder.tokenizer.end_ids
    weights = torch.arange(bridge.vocab_size).float()
    torch.testing.assert_close(bridge.pieces.average_weights(weights), weights)


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta", "deberta-v2", "xlm-roberta", "gpt2"])
def test_other_numbers(family):
    encoder = tiny(family)
    bridge = VocabularyBridge(like(EVERY_FAMILY[family], renumber), encoder)

    assert bridge.mode == "identity"
    assert_certain_value_of_the_text(
        bridge, [" " + text for text in TEXTS] if encoder.tokenizer.prefix_space else TEXTS
    )


@pytest.mark.parametrize("order", [1, -1])
def test_gpt2_and_roberta(order):
    # One special token of another name, the same merges and space marks.
    content = content_of("bytes")
    specials = {added["content"] for added in content["added_tokens"]}
    names = ["<|endoftext|>", *(name for name in content["model"]["vocab"] if name not in specials)]
    content["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    content["added_tokens"] = [{**content["added_tokens"][0], "id": 0, "content": "<|endoftext|>"}]
    content["post_processor"] = None
    gpt2 = wrapped(content, KINDS["gpt2"].roles)
    first, second = (gpt2, like("bytes"))[::order]
    model, _ = tiny_model("roberta")
    encoder = FrozenEncoder(model, second, num_layers=2)
    bridge = VocabularyBridge(first, encoder)

    assert bridge.mode == "identity"
    table = embedding_table(encoder, CPU)
    names = second.get_vocab()
    for name, i in first.get_vocab().items():
        expected = table[names[name]] if name in names else torch.zeros(table.shape[1])
        assert torch.equal(bridge.embedding_table(CPU)[i], expected)


def test_an_added_token_has_the_score_of_its_pieces(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.add_tokens(["dexamethasone"])
    candidate = "patients got dexamethasone"
    reference = "patients received dexamethasone"
    ids, labels = torch.tensor(tokenizer([candidate, reference], add_special_tokens=False)["input_ids"])[:, None]
    loss = SoftBERTScoreLoss(encoder, tokenizer, matching="max", fidelity_texts=[candidate])

    expected = bert_score([candidate], [reference], encoder)["f1"].item()

    assert loss.bridge.mode == "expand"
    for target in ([reference], labels):
        score = 1 - loss(certain(loss.bridge, ids), target)
        assert score.item() == pytest.approx(expected, abs=1e-6)


def test_a_token_added_to_the_encoder_is_not_identity(minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm)
    tokenizer.add_tokens(["dexamethasone"])
    with torch.random.fork_rng(devices=[]):
        # Without the mean of all embeddings, whose covariance takes a second.
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    bridge = VocabularyBridge(AutoTokenizer.from_pretrained(minilm), encoder)

    # The metric scores one piece where the generator writes several.
    assert bridge.mode == "mean"
    assert bridge.fidelity(["patients got dexamethasone"]) < 0.99
    with pytest.raises(ValueError, match="mode='identity' needs tokenizers"):
        VocabularyBridge(bridge.generator_tokenizer, encoder, "identity")


def cut_otherwise(content):
    model = content["model"]
    if model["type"] == "WordPiece":
        content["normalizer"] = None  # no lower case
    elif model["type"] == "BPE":
        model["merges"][-300:] = model["merges"][-300:][::-1]
    else:
        scores = [score for _, score in model["vocab"]][::-1]
        model["vocab"] = [[name, score] for (name, _), score in zip(model["vocab"], scores, strict=True)]


def without_spaces(content):
    parts = [{"type": "WhitespaceSplit"}, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}


@pytest.mark.parametrize(
    ("family", "change"),
    [
        *((family, cut_otherwise) for family in ("bert", "deberta", "deberta-v2", "xlm-roberta")),
        ("deberta", without_spaces),
    ],
)
def test_the_same_names_for_other_texts(family, change):
    changed = like(EVERY_FAMILY[family], change)

    assert changed.get_vocab() == tiny(family).tokenizer.vocabulary
    assert VocabularyBridge(changed, tiny(family)).mode != "identity"
    with pytest.raises(ValueError, match="mode='identity' needs tokenizers that split texts into the same tokens"):
        VocabularyBridge(changed, tiny(family), "identity")


@pytest.fixture(scope="module")
def words_bridge(encoder):
    """The bridge from whole words, whose table takes longer to build than most tests."""
    return VocabularyBridge(generator("words"), encoder, min_fidelity=0)


def ids_of(tokenizer, texts):
    return padded([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


def written(tokenizer, labels):
    """The texts that the labels say, which need not be the texts they came from."""
    return tokenizer.batch_decode([row[row != IGNORE] for row in labels], skip_special_tokens=True)


def test_certain_predictions_have_the_score_of_the_decoded_text(encoder, pairs, words_bridge):
    tokenizer = generator("words")
    labels = ids_of(tokenizer, pairs[0][:10])
    texts = written(tokenizer, labels)
    references = several_references(pairs[1][:10])
    corpus = pairs[1][:60]

    for idf in (False, BERTScore(encoder, idf=corpus)):
        expected = bert_score(texts, references, encoder, idf=idf and corpus)
        for matching in MATCHINGS:
            loss = SoftBERTScoreLoss(
                encoder, tokenizer=words_bridge, matching=matching, matching_temperature=1e-6, idf=idf, reduction="none"
            )
            assert loss.bridge.mode == "expand"
            scores = loss(certain(words_bridge, labels), references, labels != IGNORE, return_components=True)[1]
            for name in COMPONENTS:
                assert (scores[name] - expected[name]).abs().max() < 1e-5


PLAIN_WORDS = ["one", "two", "three", "the", "cat", "is", "a", "list"]
AWKWARD = [
    "one\ntwo\nthree",
    "the\tcat  is a   list",
    "\n the café is naïve\n",
    "one 東京 two 東 three",
    "the cat 🙂 is a 👩‍👧 list",
]


@cache
def generator_of_words(kind):
    """A generator's tokenizer that knows a few plain words whole, and other characters by their bytes or one by one."""
    spaced = [f"\u2581{word}" for word in PLAIN_WORDS]
    if kind == "byte-level BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        options = {"special_tokens": SPECIALS, "show_progress": False, "initial_alphabet": alphabet}
        trainer = trainers.BpeTrainer(vocab_size=3000, **options)
        tokenizer.train_from_iterator([*PLAIN_WORDS, *(f" {word}" for word in PLAIN_WORDS)] * 5, trainer)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ROLES)
    specials = [*SPECIALS, "<unk>"]
    if kind == "WordPiece":
        vocabulary = [*specials, *PLAIN_WORDS, "café", "naïve", "東", "京", "🙂", "👩👧"]
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys(vocabulary))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.decoder = decoders.WordPiece()
    else:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        vocabulary = [(name, 0.0) for name in specials] + [(name, -9.0) for name in names]
        vocabulary += [(word, -1.0) for word in [*spaced, "\u2581", "\u2581\u2581", *PLAIN_WORDS]]
        tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
        parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **ROLES)


@pytest.mark.filterwarnings("ignore:.*of the characters are unknown to the encoder")
@pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece", "SentencePiece"])
@pytest.mark.parametrize("family", ["minilm", "deberta", "xlm-roberta"])
def test_one_hot_labels_have_the_score_of_what_they_say(encoder, kind, family):
    """With line breaks, tabs, double spaces, accents, characters of several bytes and emoji."""
    encoder = encoder if family == "minilm" else tiny(family)
    tokenizer = generator_of_words(kind)
    bridge = VocabularyBridge(tokenizer, encoder, min_fidelity=0)
    loss = SoftBERTScoreLoss(encoder, bridge, matching="max", reduction="none")
    labels = ids_of(tokenizer, AWKWARD)
    texts = written(tokenizer, labels)
    if kind != "WordPiece":
        assert [text.strip() for text in texts] == [text.strip() for text in AWKWARD]
    z = certain(bridge, labels, 100.0)
    is_real = labels != IGNORE
    itself = bert_score(texts, texts, encoder)["f1"]

    torch.testing.assert_close(1 - loss(z, labels).float(), itself, atol=1e-5, rtol=0)
    torch.testing.assert_close(1 - loss(z, texts, is_real).float(), itself, atol=1e-5, rtol=0)
    others = texts[1:] + texts[:1]
    expected = bert_score(texts, others, encoder)["f1"]
    assert expected.max() < 0.999
    torch.testing.assert_close(1 - loss(z, others, is_real).float(), expected, atol=1e-5, rtol=0)
    assert bridge.fidelity(texts) == pytest.approx(1, abs=1e-5)


def test_labels_are_decoded(encoder, pairs, words_bridge):
    tokenizer = generator("words")
    labels = ids_of(tokenizer, pairs[0][:4])
    with_ends = padded([[*row[row != IGNORE].tolist(), tokenizer.eos_token_id] for row in labels])
    loss = SoftBERTScoreLoss(encoder, tokenizer=words_bridge, reduction="none")
    z = certain(words_bridge, with_ends, 6.0)
    by_labels = loss(z, with_ends)
    by_texts = loss(z[:, :-1], written(tokenizer, labels), labels != IGNORE)

    assert torch.allclose(by_labels, by_texts, atol=1e-6)
    assert by_labels.mean() < 0.3


@pytest.mark.parametrize("mode", ["mean", "expand"])
@pytest.mark.parametrize("min_fidelity", [0, 0.85])
def test_low_fidelity_is_refused_or_reported_with_advice(encoder, mode, min_fidelity):
    bridge = VocabularyBridge(tiny_tokenizer("bytes"), encoder, mode, min_fidelity=min_fidelity)
    said = rf"texts score 0\.\d+ against themselves through the bridge from .* \(mode='{mode}'\)"
    refused = min_fidelity > 0

    with pytest.raises(ValueError, match=said) if refused else pytest.warns(UserWarning, match=said) as caught:
        SoftBERTScoreLoss(encoder, bridge, fidelity_texts=["it rains today", "a cat sat on the mat"])
    said = str(caught.value if refused else caught[0].message)
    assert ("mode='auto' selects" in said) is (mode == "mean")
    assert ("below 0.85" in said and "min_fidelity=0)" in said) is refused


def test_a_bridge_that_is_not_checked_is_reported(encoder, minilm):
    with pytest.warns(UserWarning, match=r"\(mode='expand'\) is not checked\. .* as fidelity_texts="):
        SoftBERTScoreLoss(encoder, tiny_tokenizer("bytes"))

    SoftBERTScoreLoss(encoder, VocabularyBridge(tiny_tokenizer("bytes"), encoder, min_fidelity=0))
    SoftBERTScoreLoss(encoder, minilm)


def test_a_bridge_may_be_shared(encoder, minilm, words_bridge):
    bridge = words_bridge
    first = SoftBERTScoreLoss(encoder, tokenizer=bridge)
    second = SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=2), tokenizer=bridge)

    assert first.bridge is second.bridge is copy.deepcopy(first).bridge is bridge
    assert "bridge='expand'" in repr(pickle.loads(pickle.dumps(first)))
    table = bridge.embedding_table("cpu")
    again = pickle.loads(pickle.dumps(bridge))
    assert torch.equal(again.embedding_table("cpu"), table)
    assert again.control_ids == bridge.control_ids
    assert len(pickle.dumps(bridge)) < table.nbytes
    with pytest.raises(ValueError, match=r"logits has 10 tokens, that of the generator's tokenizer has \d+"):
        first(torch.zeros(1, 2, 10), ["a"])
    with pytest.raises(ValueError, match="another encoder's vocabulary"):
        SoftBERTScoreLoss(tiny("bert"), tokenizer=bridge)
