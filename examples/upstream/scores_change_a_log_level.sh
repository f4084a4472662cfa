#!/usr/bin/env bash
# torchmetrics 1.9: bert_score leaves a level on a logger of transformers, which ignores set_verbosity from then on.
#
# Versions: torchmetrics 1.9.0, transformers 5.24.0, torch 2.13.0, Python 3.11.
# Expected: after the call, loggers are as before, so that transformers.logging.set_verbosity_error() silences the messages
#   about loading a model.
# Behaviour: the logger transformers.modeling_utils has no level of its own before the call. Afterwards it keeps the level
#   that it had inherited, WARNING, so that the verbosity of the library does not reach it anymore.
# Output seen:
#   before: level NOTSET, effective after set_verbosity_error: ERROR
#   after: level WARNING, effective after set_verbosity_error: WARNING
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > levels.py <<'PYTHON'
import logging

from torchmetrics.functional.text.bert import bert_score
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils import logging as transformers_logging

logger = logging.getLogger("transformers.modeling_utils")


def show(when):
    usual = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    effective = logging.getLevelName(logger.getEffectiveLevel())
    transformers_logging.set_verbosity(usual)
    print(f"{when}: level {logging.getLevelName(logger.level)}, effective after set_verbosity_error: {effective}")


words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat"]
with open("vocab.txt", "w") as file:
    file.write("\n".join(words))
BertTokenizerFast("vocab.txt").save_pretrained("model")
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("model")

show("before")
bert_score(["a cat"], ["a cat sat"], model_name_or_path="model", num_layers=1)
show("after")
PYTHON

export PYTHONUTF8=1 HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet torchmetrics==1.9.0 transformers==5.24.0
venv/bin/python levels.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
before: level NOTSET, effective after set_verbosity_error: ERROR
after: level WARNING, effective after set_verbosity_error: WARNING
OUTPUT
