"""Generator of the study: a small decoder that reads the stored outputs of a frozen encoder.

Both halves are initialized from an encoder such as MiniLM. Since the encoding half is frozen, each document is encoded
once for all runs; the vocabulary is that of the training pairs. Both make training steps cheap.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, EncoderDecoderModel
from transformers.modeling_outputs import BaseModelOutput

from examples.docstring_training import evaluating
from examples.study.texts import Pair

__all__ = ["SOURCE_TOKENS", "TARGET_TOKENS", "Collate", "Example", "Generator", "load_generator", "make_generator"]

SOURCE_TOKENS = 48
"""Tokens of a document that the generator reads."""
TARGET_TOKENS = 24
"""Longest summary in tokens."""

_TEXTS_AT_ONCE = 64

Example = tuple[Tensor, str]
"""Encoded document, shape (tokens, width), and summary."""


@dataclass(frozen=True)
class Generator:
    """A generator with its tokenizer.

    Args:
        model: the encoder-decoder.
        tokenizer: its tokenizer.
    """

    model: EncoderDecoderModel
    tokenizer: Any

    def inputs(self, documents: Sequence[str]) -> dict[str, Tensor]:
        """Tokenize documents.

        Args:
            documents: the texts.

        Returns:
            ``input_ids`` and ``attention_mask``.
        """
        rows = self.tokenizer(
            list(documents), max_length=SOURCE_TOKENS, truncation=True, padding=True, return_tensors="pt"
        )
        return {name: rows[name] for name in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def encode(self, documents: Sequence[str]) -> list[Tensor]:
        """Encode documents.

        Args:
            documents: the texts.

        Returns:
            For each the outputs of the frozen half, shape (tokens, width).
        """
        states: list[Tensor] = []
        with evaluating(self.model):
            for first in range(0, len(documents), _TEXTS_AT_ONCE):
                inputs = self.inputs(documents[first : first + _TEXTS_AT_ONCE])
                output = self.model.encoder(**inputs).last_hidden_state
                states += [row[mask.bool()].clone() for row, mask in zip(output, inputs["attention_mask"], strict=True)]
        return states

    def summarize(self, states: Sequence[Tensor]) -> list[str]:
        """Decode greedily, without a constraint on repetition.

        Args:
            states: encoded documents.

        Returns:
            One summary for each.
        """
        generate: Any = self.model.generate
        collate = Collate(self.tokenizer)
        order = sorted(range(len(states)), key=lambda i: len(states[i]))
        summaries = [""] * len(states)
        for first in range(0, len(order), _TEXTS_AT_ONCE):
            numbers = order[first : first + _TEXTS_AT_ONCE]
            batch = collate([(states[i], "") for i in numbers])
            del batch["labels"]
            with evaluating(self.model):
                ids = generate(**batch, max_new_tokens=TARGET_TOKENS, num_beams=1, do_sample=False)
            for number, text in zip(numbers, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                summaries[number] = text
        return summaries

    def save(self, folder: Path) -> None:
        """Save model and tokenizer.

        Args:
            folder: folder to write to.
        """
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class Collate:
    """Collate examples to a batch: padded states with their mask, and labels padded with -100.

    Args:
        tokenizer: the generator's tokenizer.
    """

    tokenizer: Any

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the batch."""
        states, summaries = zip(*examples, strict=True)
        ids = self.tokenizer(list(summaries), max_length=TARGET_TOKENS, truncation=True)["input_ids"]
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=pad_sequence(list(states), batch_first=True)),
            "attention_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in states], True),
            # Without the cls token, which starts decoding.
            "labels": pad_sequence([torch.tensor(row[1:]) for row in ids], True, padding_value=-100),
        }


def make_generator(name: str, encoder_layers: int, decoder_layers: int, pairs: Sequence[Pair], seed: int) -> Generator:
    """Return an untrained generator.

    Args:
        name: encoder of the BERT family, whose first layers initialize both halves.
        encoder_layers: layers of the encoding half.
        decoder_layers: layers of the decoding half.
        pairs: the training pairs, whose tokens are the vocabulary.
        seed: seed of the new weights.

    Returns:
        The generator, with a frozen encoding half and frozen embeddings.
    """
    torch.manual_seed(seed)
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(
        name, name, encoder_num_hidden_layers=encoder_layers, decoder_num_hidden_layers=decoder_layers
    )
    tokenizer = _cut_vocabulary(model, AutoTokenizer.from_pretrained(name), pairs)
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        config.pad_token_id = tokenizer.pad_token_id
    return _frozen(Generator(model, tokenizer))


def load_generator(folder: Path) -> Generator:
    """Load a generator that was saved.

    Args:
        folder: its folder.

    Returns:
        The generator, with a frozen encoding half and frozen embeddings.
    """
    model = EncoderDecoderModel.from_pretrained(folder)
    return _frozen(Generator(model, AutoTokenizer.from_pretrained(folder)))


def _frozen(generator: Generator) -> Generator:
    generator.model.encoder.requires_grad_(False)
    generator.model.decoder.get_input_embeddings().weight.requires_grad_(False)
    return generator


def _cut_vocabulary(model: EncoderDecoderModel, tokenizer: Any, pairs: Sequence[Pair]) -> Any:
    """Keep special tokens, single characters and the tokens of the training pairs; return the new tokenizer."""
    used = _ids(tokenizer, (pair.document for pair in pairs), SOURCE_TOKENS)
    used |= _ids(tokenizer, (pair.summary for pair in pairs), TARGET_TOKENS)
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    used |= {number for number, token in tokens.items() if len(token.removeprefix("##")) == 1 and token.isascii()}
    kept = sorted(used | set(tokenizer.all_special_ids))
    for half in (model.encoder, model.decoder):
        table = half.get_input_embeddings().weight.data
        table[: len(kept)] = table[kept]
        half.resize_token_embeddings(len(kept))
    return _with_vocabulary(tokenizer, [tokens[number] for number in kept])


def _ids(tokenizer: Any, texts: Iterable[str], tokens: int) -> set[int]:
    return {i for row in tokenizer(list(texts), max_length=tokens, truncation=True)["input_ids"] for i in row}


def _with_vocabulary(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """Return a WordPiece tokenizer with other tokens."""
    numbers = {token: i for i, token in enumerate(tokens)}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        path = Path(folder, "tokenizer.json")
        state = json.loads(path.read_text(encoding="utf-8"))
        state["model"]["vocab"] = numbers
        for added in state["added_tokens"]:
            added["id"] = numbers[added["content"]]
        for special in state["post_processor"]["special_tokens"].values():
            special["ids"] = [numbers[token] for token in special["tokens"]]
        path.write_text(json.dumps(state), encoding="utf-8")
        Path(folder, "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        return AutoTokenizer.from_pretrained(folder)
