#!/usr/bin/env bash
# transformers 5 accepts add_prefix_space in a call of RoBERTa's tokenizer and ignores it; 4.57 obeys it.
#
# Versions: transformers 5.24.0 and 4.57.6, torch 2.13.0, Python 3.11.
# Expected: RobertaTokenizer.encode(text, add_prefix_space=True) puts a space before the text, as in earlier versions, or is
#   an error, as of RobertaTokenizerFast in 4.57.6.
# Behaviour: 4.57.6 encodes the first word with its space. 5.24.0 returns the ids without it, without error or warning.
#   The same name passed to from_pretrained works in both.
# Output seen:
#   4.57.6: cat -> cat, add_prefix_space in the call -> Ġcat, in from_pretrained -> Ġcat
#   5.24.0: cat -> cat, add_prefix_space in the call -> cat, in from_pretrained -> Ġcat
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > encode.py <<'PYTHON'
import os

import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaTokenizer

os.makedirs("model", exist_ok=True)
bytes_tokenizer = ByteLevelBPETokenizer()
special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
bytes_tokenizer.train_from_iterator(["cat a cat the cat"] * 10, vocab_size=270, special_tokens=special, show_progress=False)
bytes_tokenizer.save_model("model")
tokenizer = RobertaTokenizer.from_pretrained("model")
spaced = RobertaTokenizer.from_pretrained("model", add_prefix_space=True)


def first(tokenizer, **options):
    return tokenizer.convert_ids_to_tokens(tokenizer.encode("cat", **options))[1]


print(
    f"{transformers.__version__}: cat -> {first(tokenizer)}, "
    f"add_prefix_space in the call -> {first(tokenizer, add_prefix_space=True)}, in from_pretrained -> {first(spaced)}"
)
PYTHON

export PYTHONUTF8=1
for version in 4.57.6 5.24.0; do
    python3 -m venv "venv-$version"
    "venv-$version/bin/pip" install --quiet torch==2.13.0
    "venv-$version/bin/pip" install --quiet "transformers==$version"
    "venv-$version/bin/python" encode.py 2> log.txt >> seen.txt || { cat log.txt; exit 2; }
done
cat seen.txt
diff seen.txt - <<'OUTPUT'
4.57.6: cat -> cat, add_prefix_space in the call -> Ġcat, in from_pretrained -> Ġcat
5.24.0: cat -> cat, add_prefix_space in the call -> cat, in from_pretrained -> Ġcat
OUTPUT
