#!/usr/bin/env bash
# ByT5's tokenizer returns a special_tokens_mask one longer than input_ids for a text that ends in </s>.
#
# Versions: transformers 5.24.0, Python 3.11.
# Expected: a mask with one number per id, as for other texts and other tokenizers.
# Behaviour: a text whose last token is </s> gets no second one, with a warning, but the mask counts one. The ids and the
#   mask of such a text cannot be made into tensors together, and a mask applied to the ids is off by one.
# Output seen:
#   'cat': 4 ids, mask of 4
#   'cat</s>': 4 ids, mask of 5
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0

cat > mask.py <<'PYTHON'
from transformers import ByT5Tokenizer

tokenizer = ByT5Tokenizer()
for text in ("cat", "cat</s>"):
    encoded = tokenizer(text, return_special_tokens_mask=True)
    print(f"{text!r}: {len(encoded['input_ids'])} ids, mask of {len(encoded['special_tokens_mask'])}")
PYTHON

venv/bin/python mask.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
'cat': 4 ids, mask of 4
'cat</s>': 4 ids, mask of 5
OUTPUT
