import csv
import re
from pathlib import Path

import bert_score as oracle_package
import pytest
import torch
from bert_score import utils as oracle_utils
from bert_score.utils import lang2model, model2layers

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.catalog import (
    baseline,
    default_model,
    find_listed,
    listed_as,
    models,
    read_hash,
    tuned_layer,
)
from bertscore_tm.compat import evaluate, torchmetrics
from bertscore_tm.compat.bert_score import BERTScorer

PUBLISHED = Path(oracle_package.__file__).parent / "rescale_baseline"
TABLES = [path.relative_to(PUBLISHED).as_posix() for path in sorted(PUBLISHED.rglob("*.tsv"))]


def test_tuned_layers_are_those_of_bert_score():
    assert len(model2layers) == 140
    assert len(TABLES) == 72
    assert {model: tuned_layer(model) for model in model2layers} == model2layers


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_those_of_bert_score(table):
    lang, name = table.removesuffix(".tsv").split("/", 1)
    with (PUBLISHED / table).open() as file:
        _, *rows = csv.reader(file)
    expected = []
    for _, *cells in rows:
        expected.append(list(map(float, cells)))

    assert baseline(lang, name).tolist() == expected


def test_the_correlations_of_the_page_are_the_published_ones():
    source = Path(oracle_utils.__file__).read_text()
    published = set()
    for name, layer, comment in re.findall(r'^ *"([^"]+)": (\d+),(?:  # (.*))?$', source, re.MULTILINE):
        correlations = re.findall(r"0\.\d+", comment)
        if correlations:
            published.add((name, layer, f"{float(correlations[0]):.3f}"))
    page = (Path(__file__).parents[1] / "examples" / "docs" / "encoders.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| `(.+)` \| (\d+) \| (0\.\d{3}) \|$", page, re.MULTILINE)

    assert len(rows) == 7
    assert {*rows} <= published
    assert models() == list(model2layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FacebookAI/roberta-large", "roberta-large"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("google-t5/t5-base", "t5-base"),
        ("facebook/bart-base", "facebook/bart-base"),
        ("someone/roberta-large", None),
        ("facebookai/roberta-large", None),
        ("FacebookAI/", None),
        ("/models/roberta-large", None),
    ],
)
def test_current_hub_names_of_old_models_are_listed(name, expected):
    assert listed_as(name) == expected
    if expected is not None:
        assert tuned_layer(name) == model2layers[expected]


@pytest.mark.parametrize("lang", ["en", "zh", "tr", "en-sci", "de", "fr", "ja"])
def test_default_models_are_those_of_bert_score(lang):
    assert default_model(lang) == default_model(lang.upper()) == lang2model[lang]


@pytest.mark.parametrize(
    ("lang", "message"),
    [
        ("english", "language must be a language code such as 'en' or 'de', got 'english'"),
        *((lang, "language must be a language code") for lang in ("roberta-large", "xx", "")),
        ("en-US", "language='en-US' has no default model, but 'en' has one: pass language='en' or a model"),
        ("zh_CN", "language='zh_CN' has no default model, but 'zh' has one"),
        ("eng", "language='eng' has no default model, but 'en' has one: pass language='en' or a model"),
        ("eng_Latn", "language='eng_Latn' has no default model, but 'en' has one"),
        *((lang, f"language='{lang}' has no .*, but 'zh' has one") for lang in ("zho_Hans", "cmn", "chi")),
        ("tur", "language='tur' has no default model, but 'tr' has one"),
    ],
)
def test_an_invalid_language_is_not_the_multilingual_model(lang, message):
    with pytest.raises(ValueError, match=message):
        default_model(lang)


def test_the_case_and_region_of_a_language_do_not_matter():
    assert default_model("pt-BR") == default_model("nds") == "bert-base-multilingual-cased"
    assert torch.equal(baseline("EN", "FacebookAI/roberta-large"), baseline("en", "roberta-large"))


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda: tuned_layer("roberta-larg"), "'roberta-larg'.*num_layers.*similar.*roberta-large"),
        (lambda: tuned_layer("/models/deberta-v3-large"), "-v3-large'.*similar.*microsoft/deberta-v3-large"),
        (
            lambda: find_listed("roberta-larg"),
            "'roberta-larg'.*listed_as .* must be .*similar listed .*roberta-large",
        ),
        (lambda: baseline("en", "someone/roberta-large"), "models with a table for 'en' include .*roberta-large"),
        (lambda: baseline("nl", "bert-base-uncased"), "languages with tables are cs, de, en, en-sci, es, et, fi, fr"),
    ],
)
def test_the_error_for_an_unlisted_name_lists_similar_names(look_up, message):
    with pytest.raises(ValueError, match=message):
        look_up()


@pytest.mark.parametrize("model", ["roberta-large", "microsoft/deberta-xlarge-mnli", "a_L2_idf_version=1/b_L3"])
@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("is_fast", [False, True])
def test_hashes_of_the_reference_package_are_read(model, idf, rescale, is_fast):
    text = oracle_utils.get_hash(model, 17, idf, rescale, False, is_fast)
    of_own_table = oracle_utils.get_hash(model, 17, idf, True, True, is_fast)

    assert read_hash(text) == {"model": model, "num_layers": 17, "idf": idf, "rescale": rescale}
    for other in (of_own_table, f"{text}-x", model):
        assert read_hash(other) == {}


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("model_type", lambda text: BERTScorer(text)),
        ("model_type", lambda text: evaluate.load("bertscore").compute(predictions=[], references=[], model_type=text)),
        ("model", FrozenEncoder),
        ("model", lambda text: bert_score(["a"], ["b"], text)),
        ("model_name_or_path", torchmetrics.BERTScore),
        ("model_name_or_path", lambda text: torchmetrics.bert_score(["a"], ["b"], text)),
    ],
)
def test_a_hash_instead_of_a_model_is_an_error_with_its_settings(argument, call):
    text = oracle_utils.get_hash("roberta-large", 17, True, False, False, False)
    settings = "model roberta-large, num_layers 17, idf True, rescale False"
    message = f"{argument}: {text} is a hash, not a model: pass its settings as arguments, {settings}"

    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(text)
