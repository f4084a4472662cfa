#!/usr/bin/env bash
# TRL counts a missing reward (None) as 0 where another reward function has a value for the completion.
#
# Versions: trl 1.16.0, transformers 5.24.0, accelerate 1.15.0, datasets 5.2.0, torch 2.13.0, Python 3.11.
# Expected: by the documentation a function that returns None for a completion is excluded from its reward, so that a
#   missing value is not the same as the value 0, and the mean reward is the sum of the means of the functions.
# Behaviour: with one function, completions with None are left out of the mean "reward". Next to a second function that
#   gives 0.5 to all, None adds 0: "reward" is 1.0, the mean of 1.5 and 0.5, though the logged means of the two functions
#   are 1.0 and 0.5.
# Output seen:
#   1 function: reward 1.00, rewards/partial/mean 1.00
#   2 functions: reward 1.00, rewards/partial/mean 1.00, rewards/constant/mean 0.50
#   2 functions, none missing: reward 1.50, rewards/partial/mean 1.00, rewards/constant/mean 0.50
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0

cat > train.py <<'PYTHON'
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = {"[PAD]": 0, "[UNK]": 1, "[EOS]": 2, "rain": 3, "snow": 4, "wind": 5}
backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **tokens)


def partial(completions, answer, **columns):
    return [None if text is None else 1.0 for text in answer]


def constant(completions, **columns):
    return [0.5] * len(completions)


def log_of(functions, other_answer):
    rows = [{"prompt": "rain snow", "answer": "wind"}, {"prompt": "snow rain", "answer": other_answer}] * 2
    arguments = GRPOConfig(
        "output",
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=4,
        max_completion_length=4,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), bos_token_id=2, eos_token_id=2, **sizes))
    trainer = GRPOTrainer(model, functions, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    names = ["reward", *(f"rewards/{function.__name__}/mean" for function in functions)]
    return ", ".join(f"{name} {trainer.state.log_history[0][name]:.2f}" for name in names)


with open("seen.txt", "w") as file:
    print("1 function:", log_of([partial], None), file=file)
    print("2 functions:", log_of([partial, constant], None), file=file)
    print("2 functions, none missing:", log_of([partial, constant], "wind"), file=file)
PYTHON

export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1
venv/bin/python train.py > log.txt 2>&1 || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
1 function: reward 1.00, rewards/partial/mean 1.00
2 functions: reward 1.00, rewards/partial/mean 1.00, rewards/constant/mean 0.50
2 functions, none missing: reward 1.50, rewards/partial/mean 1.00, rewards/constant/mean 0.50
OUTPUT
