"""Command that compares the gradients of losses with that of the expected BERTScore of a generator's samples."""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import (
    BERTScoreReward,
    SampledSequences,
    SoftBERTScoreLoss,
    TokenMass,
    minimum_risk_loss,
    sample_with_log_probs,
    self_critical_loss,
    softmax_relaxation,
)
from bertscore_tm.losses.soft_matching import Matching, resolve_matching
from bertscore_tm.statistics import mean_interval
from examples.benchmarks.encoders import packaged_model
from examples.benchmarks.small_generator import Batch, Task, make_task, train_generator
from examples.benchmarks.tables import Record, table
from examples.docstrings import load_corpus

__all__ = [
    "cosine",
    "find_gradients",
    "match_prefix",
    "match_without_prefix",
    "measure",
    "relax_to_samples",
    "summarize",
    "to_cosines",
    "weight_by_entropy",
]

COLUMNS = {
    "gradient": "",
    "cosine": ".2f",
    "low": ".2f",
    "high": ".2f",
    "exact": ".2f",
    "minus_soft": "+.2f",
    "minus_soft_low": "+.2f",
    "minus_soft_high": "+.2f",
}
_HALVES = ("policy gradient", "policy gradient, other half")
_SOFT = "soft loss"
_BEST = "cross-entropy on the best candidate"

_LONGEST_SAMPLE = 14
_INPUTS_PER_STEP = 8
_IGNORED = -100
# Below every cosine similarity, so that the matchings ignore it.
_NEVER_MATCHED = -2.0

Gradients = dict[str, Tensor]

_match_softly = resolve_matching("softmax")


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of two vectors.

    Args:
        one: shape (n,).
        other: shape (n,).

    Returns:
        The cosine, NaN where a vector is 0.

    Example:
        >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
        0.6
    """
    one, other = one.double(), other.double()
    return float(one @ other / (one.norm() * other.norm()))


def find_gradients(
    model: PreTrainedModel, task: Task, reward: BERTScoreReward, lines: Sequence[str], samples: int, candidates: int
) -> Gradients:
    """Return the gradient of each loss with respect to all parameters of a generator.

    Args:
        model: the generator.
        task: its task.
        reward: the score whose expectation is to rise.
        lines: texts whose inputs the generator gets.
        samples: samples per input of each half of the policy gradient.
        candidates: samples per input of the other losses.

    Returns:
        By name, each of shape (parameters,); the two halves of the policy gradient come from different samples.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    totals: dict[str, Any] = defaultdict(float)
    for start in range(0, len(lines), _INPUTS_PER_STEP):
        batch = task.collate(lines[start : start + _INPUTS_PER_STEP])
        share = len(batch.lines) / len(lines)
        for name, loss in _losses(model, task, reward, batch, samples, candidates):
            found = torch.autograd.grad(loss * share, parameters, retain_graph=True, allow_unused=True)
            totals[name] += torch.cat(
                [
                    (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
                    for parameter, gradient in zip(parameters, found, strict=True)
                ]
            )
    best, soft = totals[_BEST], totals[_SOFT]
    totals["soft loss + cross-entropy on the best candidate, equal norms"] = best / best.norm() + soft / soft.norm()
    return totals


def to_cosines(gradients: Gradients) -> dict[str, float]:
    """Return the cosine of each gradient with half of the policy gradient, the mean over both halves.

    Args:
        gradients: result of :func:`find_gradients`.

    Returns:
        By name; that of the policy gradient is the cosine of its two halves.
    """
    halves = [gradients[name] for name in _HALVES]
    found = {_HALVES[0]: cosine(*halves)}
    for name, gradient in gradients.items():
        if name not in _HALVES:
            found[name] = sum(cosine(gradient, half) for half in halves) / 2
    return found


def measure(
    task: Task, encoder: FrozenEncoder, seed: int, steps: int, inputs: int, samples: int, candidates: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Train a generator and compare the gradients on a part of its training inputs.

    Args:
        task: the task.
        encoder: encoder of the reward.
        seed: seed of the training, the inputs and the samples.
        steps: training steps.
        inputs: number of inputs.
        samples: see :func:`find_gradients`.
        candidates: see :func:`find_gradients`.

    Returns:
        The cosines by name, and facts of the generator: its held-out cross-entropy after three quarters of the training
        and at the end, and the mean F1 of its samples on the inputs.
    """
    model, held_out = train_generator(task, steps, seed)
    generator = torch.Generator().manual_seed(seed)
    lines = [task.train[i] for i in torch.randperm(len(task.train), generator=generator)[:inputs].tolist()]
    reward = BERTScoreReward(encoder, device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch = task.collate(lines)
        sampled = _score(task, reward, batch, sample_with_log_probs(model, batch.inputs, 4, **_limit()))
        gradients = find_gradients(model, task, reward, lines, samples, candidates)
    facts = dict(zip(("cross_entropy_before", "cross_entropy"), held_out, strict=True))
    return to_cosines(gradients), facts | {"sampled_f1": float(sampled.mean())}


def _losses(
    model: Any, task: Task, reward: BERTScoreReward, batch: Batch, samples: int, candidates: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the losses of a batch one after the other, each a mean over its inputs."""
    count = len(batch.lines)
    for name in _HALVES:
        drawn = sample_with_log_probs(model, batch.inputs, samples, **_limit())
        yield name, self_critical_loss(drawn.log_probs, _score(task, reward, batch, drawn), drawn.mask)

    drawn = sample_with_log_probs(model, batch.inputs, candidates, **_limit())
    scores = _score(task, reward, batch, drawn)
    of_texts, best = drawn.log_probs.sum(-1), scores.argmax(1, keepdim=True)
    of_best = of_texts.gather(1, best).squeeze(1)
    yield "policy gradient of the candidates", self_critical_loss(drawn.log_probs, scores, drawn.mask)
    yield "minimum risk", minimum_risk_loss(drawn.log_probs, scores, drawn.mask)
    yield (
        "minimum risk, normalize='length'",
        minimum_risk_loss(drawn.log_probs, scores, drawn.mask, normalize="length"),
    )
    yield _BEST, -of_best.mean()
    others = (of_texts.sum(1) - of_best) / (candidates - 1)
    yield "cross-entropy on the best minus that on the other candidates", (others - of_best).mean()
    yield "cross-entropy on a random candidate", -of_texts[:, 0].mean()

    logits = model(**batch.inputs, labels=batch.labels).logits
    cross_entropy = F.cross_entropy(logits.mT, batch.labels, ignore_index=_IGNORED, reduction="sum") / count
    soft = partial(SoftBERTScoreLoss, task.encoder)
    yield "cross-entropy", cross_entropy
    soft_loss = soft()(logits, batch.labels)
    yield _SOFT, soft_loss
    yield "soft loss, entmax15", soft(relaxation="entmax15")(logits, batch.labels)
    yield "soft loss, transport", soft(matching="transport")(logits, batch.labels)
    tokens_per_line = float((batch.labels != _IGNORED).sum()) / count
    yield (
        "cross-entropy + soft loss, weight 1",
        cross_entropy / tokens_per_line + soft_loss,
    )
    yield "soft loss, no match with the prefix", soft(matching=match_without_prefix)(logits, batch.labels)
    yield (
        "soft loss minus the score against the prefix",
        soft_loss - soft(matching=match_prefix)(logits, batch.labels),
    )
    yield (
        "soft loss, positions weighted by entropy",
        soft(matching=weight_by_entropy(logits, batch.labels))(logits, batch.labels),
    )

    ids, mask = drawn.ids.flatten(0, 1), drawn.mask.flatten(0, 1)
    repeated = {name: values.repeat_interleave(candidates, 0) for name, values in batch.inputs.items()}
    logits = model(**repeated, labels=ids.masked_fill(~mask, _IGNORED)).logits
    content = mask & (ids != model.generation_config.eos_token_id)
    references = [line for line in batch.lines for _ in range(candidates)]
    yield "soft loss after sampled prefixes", soft()(logits, references, content)
    yield (
        "soft loss after sampled prefixes, straight-through the samples",
        soft(relaxation=partial(relax_to_samples, ids), matching="max")(logits, references, content),
    )
    rows = best.squeeze(1) + candidates * torch.arange(count)
    yield "soft loss after the best candidate's prefixes", soft()(logits[rows], batch.lines, content[rows])


def _limit() -> dict[str, int]:
    return {"max_new_tokens": _LONGEST_SAMPLE}


def _score(task: Task, reward: BERTScoreReward, batch: Batch, drawn: SampledSequences) -> Tensor:
    """Return the reward of each sample, shape (inputs, samples)."""
    texts = task.encoder.tokenizer.tokenizer.batch_decode(drawn.ids.flatten(0, 1), skip_special_tokens=True)
    samples = drawn.ids.shape[1]
    found = reward(texts, [line for line in batch.lines for _ in range(samples)])
    return torch.tensor(found).view(-1, samples)


def match_without_prefix(
    similarities: Tensor, candidate: TokenMass, reference: TokenMass, temperature: float
) -> tuple[Tensor, Tensor]:
    """Match softly, each position with its own and later tokens of the reference, not with those that it was given.

    Args:
        similarities: shape (batch, tokens, tokens); position i of both texts belongs to the same token of the labels.
        candidate: the predictions.
        reference: the labels.
        temperature: of the matching.

    Returns:
        Sums over both sides, shape (batch,) each.
    """
    given = torch.ones_like(similarities, dtype=torch.bool).tril(-1)
    return _match_softly(similarities.masked_fill(given, _NEVER_MATCHED), candidate, reference, temperature)


def match_prefix(
    similarities: Tensor, candidate: TokenMass, reference: TokenMass, temperature: float
) -> tuple[Tensor, Tensor]:
    """Match softly, each position only with the tokens of the reference that it was given.

    Args:
        similarities: as for :func:`match_without_prefix`.
        candidate: the predictions.
        reference: the labels.
        temperature: of the matching.

    Returns:
        Sums over both sides, shape (batch,) each.
    """
    given = torch.ones_like(similarities, dtype=torch.bool).tril(-1)
    return _match_softly(similarities.masked_fill(~given, _NEVER_MATCHED), candidate, reference, temperature)


def weight_by_entropy(logits: Tensor, labels: Tensor) -> Matching:
    """Return the soft matching with positions weighted by the entropy of their prediction, without gradient.

    Args:
        logits: shape (batch, positions, vocabulary).
        labels: shape (batch, positions).

    Returns:
        A matching for predictions from these logits, with these labels as the target.
    """
    log_p = logits.detach().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).masked_fill(labels == _IGNORED, 0.0)

    def reweight(side: TokenMass) -> TokenMass:
        # After the special token in front; the weights keep their sum.
        aligned = F.pad(entropy, (1, side.weights.shape[1] - entropy.shape[1] - 1)) * side.weights
        return TokenMass(side.mask, aligned * side.weights.sum(1, keepdim=True) / aligned.sum(1, keepdim=True))

    return lambda similarities, candidate, reference, temperature: _match_softly(
        similarities, reweight(candidate), reweight(reference), temperature
    )


def relax_to_samples(ids: Tensor, logits: Tensor, temperature: float, excluded_ids: Sequence[int]) -> Tensor:
    """Return sampled tokens as one-hot probabilities with the gradient of the softmax.

    Args:
        ids: the samples, shape (batch, positions).
        logits: logits at the samples, shape (batch, positions, vocabulary).
        temperature: of the softmax.
        excluded_ids: tokens without probability.

    Returns:
        The shape of the logits.
    """
    p = softmax_relaxation(logits, temperature, excluded_ids)
    return F.one_hot(ids, logits.shape[-1]) + (p - p.detach())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.gradient_direction", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="trained generators, at least 2; default: %(default)s")
    parser.add_argument("--steps", type=int, default=600, help="training steps of each; default: %(default)s")
    parser.add_argument("--inputs", type=int, default=48, help="training inputs to compare on; default: %(default)s")
    parser.add_argument("--samples", type=int, default=32, help="samples per input of each half; default: %(default)s")
    parser.add_argument(
        "--candidates", type=int, default=12, help="samples per input of the losses; default: %(default)s"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads; default: %(default)s")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="one per line; default: first lines of docstrings")
    parser.add_argument("--model", default=None, help="encoder of the BERT kind; default: the packaged MiniLM")
    parser.add_argument("--num-layers", type=int, default=5, help="its layer; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    for name, least in (("seeds", 2), ("steps", 2), ("inputs", 1), ("samples", 2), ("candidates", 2), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    torch.set_num_threads(options.threads)
    folder = options.model or packaged_model()
    task = make_task(_read_lines(options.texts), folder, options.num_layers)
    encoder = FrozenEncoder(folder, num_layers=options.num_layers)
    setting: Record = {
        "texts": "docstrings" if options.texts is None else options.texts.name,
        "lines": len(task.train),
        "pieces": task.encoder.tokenizer.vocab_size,
        "encoder": Path(folder).name if options.model else "all-MiniLM-L6-v2",
        "layer": options.num_layers,
        **{name: getattr(options, name) for name in ("steps", "inputs", "samples", "candidates", "threads")},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()), flush=True)
    runs = []
    for seed in range(options.seeds):
        found, facts = measure(task, encoder, seed, options.steps, options.inputs, options.samples, options.candidates)
        runs.append({"seed": seed, **facts, "cosines": found})
        print(", ".join(f"{name} {value:.4g}" for name, value in {"seed": seed, **facts}.items()), flush=True)
    records = summarize([run["cosines"] for run in runs])
    print(table(records, COLUMNS))
    if options.json is not None:
        content = {"setting": setting, "runs": runs, "cosines": records}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def summarize(cosines: Sequence[dict[str, float]]) -> list[Record]:
    """Return means over several generators with their 95% intervals.

    Args:
        cosines: results of :func:`to_cosines`, at least two.

    Returns:
        A record per gradient: the cosine; an estimate of its cosine with the exact policy gradient, that is, the cosine
        divided by the square root of that of two halves; and the difference to the soft loss, each generator with
        itself.
    """
    ceiling = max(fmean(found[_HALVES[0]] for found in cosines), 0.0)
    records: list[Record] = []
    for name in cosines[0]:
        own = [found[name] for found in cosines]
        differences = [found[name] - found[_SOFT] for found in cosines]
        low, high = mean_interval(own, bounds=(-1, 1))
        difference_low, difference_high = mean_interval(differences, bounds=(-2, 2))
        records.append(
            {
                "gradient": name,
                "cosine": fmean(own),
                "low": low.item(),
                "high": high.item(),
                "exact": fmean(own) / math.sqrt(ceiling) if ceiling else None,
                "minus_soft": fmean(differences),
                "minus_soft_low": difference_low.item(),
                "minus_soft_high": difference_high.item(),
            }
        )
    return records


def _read_lines(path: Path | None) -> list[str]:
    if path is not None:
        return path.read_text(encoding="utf-8").splitlines()
    return [pair.summary for side in load_corpus() for pair in side]


if __name__ == "__main__":
    main()
