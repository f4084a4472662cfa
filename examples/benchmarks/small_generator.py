"""A small generator of one-line texts from their rarer words, which trains to its plateau in a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from bertscore_tm import FrozenEncoder

__all__ = ["Batch", "Task", "encoder_of_texts", "make_generator", "make_task", "train_generator"]

_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
_PADDING_ID, _END_ID = 0, 3
_IGNORED = -100

_LONGEST = 10
_FEWEST_LINES_PER_PIECE = 12
_FREQUENT_PIECES = 60
_HELD_OUT = 200

_WIDTH, _HEAD_WIDTH, _LAYERS = 128, 32, 2
_BATCH_SIZE = 64
_LEARNING_RATE = 5e-3
_WARM_UP_STEPS = 50


@dataclass(frozen=True)
class Batch:
    """Lines as the generator takes them.

    Args:
        inputs: ``input_ids`` and ``attention_mask``, shape (lines, pieces) each.
        labels: pieces of the lines and the end token, padded with -100, shape (lines, positions).
        lines: the texts.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    lines: list[str]


@dataclass(frozen=True)
class Task:
    """Lines to generate, and an encoder whose vocabulary is cut to their pieces, which the generator shares.

    Args:
        encoder: the encoder.
        train: lines to train on.
        held_out: other lines.
        frequent: token ids that inputs leave out.
    """

    encoder: FrozenEncoder
    train: list[str]
    held_out: list[str]
    frequent: frozenset[int]

    def collate(self, lines: Iterable[str]) -> Batch:
        """Return a batch: the input of a line is the set of its pieces without the frequent ones.

        Args:
            lines: the lines.

        Returns:
            The batch.
        """
        lines = list(lines)
        rows = _content_ids(self.encoder, lines)
        # A line of frequent pieces only has an input too.
        kept = [sorted({*row} - self.frequent) or [_END_ID] for row in rows]
        ids = [torch.tensor(row) for row in kept]
        masks = [torch.ones_like(row) for row in ids]
        labels = [torch.tensor([*row, _END_ID]) for row in rows]
        inputs = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=_PADDING_ID),
            "attention_mask": pad_sequence(masks, batch_first=True),
        }
        return Batch(inputs, pad_sequence(labels, batch_first=True, padding_value=_IGNORED), lines)


def make_task(lines: Sequence[str], folder: str, num_layers: int) -> Task:
    """Choose the short lines of frequent pieces, and cut the encoder's vocabulary to them.

    Args:
        lines: candidates, such as first lines of docstrings.
        folder: a BERT encoder with lower-case pieces.
        num_layers: encoder layer that is compared.

    Returns:
        The task; which lines are held out depends on the lines only.

    Raises:
        ValueError: too few lines are left.
    """
    distinct = list(dict.fromkeys(line.lower() for line in lines))
    whole = FrozenEncoder(folder, num_layers=num_layers)
    rows = _content_ids(whole, distinct)
    in_lines = Counter(piece for row in rows for piece in {*row})
    chosen = [
        line
        for line, row in zip(distinct, rows, strict=True)
        if 1 < len(row) <= _LONGEST and all(in_lines[piece] >= _FEWEST_LINES_PER_PIECE for piece in row)
    ]
    if len(chosen) <= 2 * _HELD_OUT:
        raise ValueError(
            f"{len(chosen)} of {len(distinct)} lines are short and consist of pieces of at least "
            f"{_FEWEST_LINES_PER_PIECE} lines, but more than {2 * _HELD_OUT} are required: pass more lines"
        )
    encoder = encoder_of_texts(folder, chosen, num_layers)
    occurrences = Counter(piece for row in _content_ids(encoder, chosen) for piece in row)
    frequent = frozenset(piece for piece, _ in occurrences.most_common(_FREQUENT_PIECES))
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = [chosen[i] for i in order]
    return Task(encoder, shuffled[_HELD_OUT:], shuffled[:_HELD_OUT], frequent)


def train_generator(task: Task, steps: int, seed: int) -> tuple[T5ForConditionalGeneration, list[float]]:
    """Train a small transformer with cross-entropy, its learning rate falling to 0.

    Args:
        task: the task.
        steps: number of steps of 64 lines, at least 2.
        seed: seed of the weights, of the order of the lines and of dropout.

    Returns:
        The generator, and its cross-entropy on the held-out lines after three quarters of the steps and at the end,
        in nats per token.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_generator(task.encoder)
        optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
        batches = _draw_batches(task)
        held_out = task.collate(task.held_out)
        found = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP_STEPS) * (1 - step / steps)
            batch = next(batches)
            optimizer.zero_grad()
            model.train()(**batch.inputs, labels=batch.labels).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step + 1 in (3 * steps // 4, steps):
                with torch.no_grad():
                    found.append(model.eval()(**held_out.inputs, labels=held_out.labels).loss.item())
    return model.eval(), found


def encoder_of_texts(folder: str, texts: Sequence[str], num_layers: int) -> FrozenEncoder:
    """Cut a BERT encoder's vocabulary to the tokens of some texts; their token vectors stay the same.

    For a generator this equals never predicting another token.

    Args:
        folder: the encoder.
        texts: the texts.
        num_layers: encoder layer that is compared.

    Returns:
        The encoder; the ids of its special tokens are 0 to 3.
    """
    original = AutoTokenizer.from_pretrained(folder)
    used = {token for text in texts for token in original.tokenize(text)}
    tokens = [*_SPECIALS.values(), *sorted(used)]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    around = [(token, tokens.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    roles = {f"{role}_token": token for role, token in _SPECIALS.items()}
    model = AutoModel.from_pretrained(folder)
    rows = model.get_input_embeddings().weight.detach()[original.convert_tokens_to_ids(tokens)]
    model.set_input_embeddings(nn.Embedding.from_pretrained(rows, padding_idx=0))
    model.config.vocab_size = len(tokens)
    cut = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=original.model_max_length, **roles)
    return FrozenEncoder(model, cut, num_layers=num_layers)


def make_generator(encoder: FrozenEncoder) -> T5ForConditionalGeneration:
    """Return an untrained transformer whose token embeddings are the principal components of the encoder's.

    Args:
        encoder: the encoder, whose vocabulary it shares.

    Returns:
        The generator, with random weights but for the embeddings.
    """
    embeddings = encoder.embedding_table("cpu")
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(embeddings),
            d_model=_WIDTH,
            d_kv=_HEAD_WIDTH,
            d_ff=2 * _WIDTH,
            num_layers=_LAYERS,
            num_heads=_WIDTH // _HEAD_WIDTH,
            decoder_start_token_id=_PADDING_ID,
            pad_token_id=_PADDING_ID,
            eos_token_id=_END_ID,
        )
    )
    centred = embeddings - embeddings.mean(0)
    components = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:_WIDTH].T
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(components / components.std())
    return model


def _content_ids(encoder: FrozenEncoder, lines: Sequence[str]) -> list[list[int]]:
    return [list(row[1:-1]) for row in encoder.tokenizer(lines).ids]


def _draw_batches(task: Task) -> Iterator[Batch]:
    while True:
        order = torch.randperm(len(task.train)).tolist()
        for start in range(0, len(order) - _BATCH_SIZE + 1, _BATCH_SIZE):
            yield task.collate(task.train[i] for i in order[start : start + _BATCH_SIZE])
