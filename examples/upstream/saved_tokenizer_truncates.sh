#!/usr/bin/env bash
# A fast tokenizer of transformers is saved and copied with the truncation of its last call.
#
# Versions: transformers 5.24.0, tokenizers 0.23.3, torch 2.13.0, Python 3.11.
# Expected: truncation=True holds for one call. What is saved or copied does not depend on which call came last.
# Behaviour: a call sets the truncation of the shared Rust object, and save_pretrained writes it to tokenizer.json: the
#   tokenizers package, which other servers and languages use, then truncates every text to that length. So does the
#   backend of a deep copy. transformers itself resets it in its next call, and so does not show it.
# Output seen:
#   saved before the call: None, 5 ids with the tokenizers package
#   saved after the call: 2, 2 ids with the tokenizers package
#   transformers: 5 ids; backend of a deep copy: 2 ids
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3

cat > save.py <<'PYTHON'
import copy
import json

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXT = "rain rain rain rain rain"
backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "rain": 2}, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def save(name):
    tokenizer.save_pretrained(name)
    with open(f"{name}/tokenizer.json") as file:
        truncation = json.load(file)["truncation"]
    count = len(Tokenizer.from_file(f"{name}/tokenizer.json").encode(TEXT).ids)
    print(f"saved {name} the call: {truncation and truncation['max_length']}, {count} ids with the tokenizers package")


save("before")
tokenizer(TEXT, truncation=True, max_length=2)
save("after")
copied = copy.deepcopy(tokenizer)
count = len(AutoTokenizer.from_pretrained("after")(TEXT)["input_ids"])
print(f"transformers: {count} ids; backend of a deep copy: {len(copied.backend_tokenizer.encode(TEXT).ids)} ids")
PYTHON

venv/bin/python save.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
saved before the call: None, 5 ids with the tokenizers package
saved after the call: 2, 2 ids with the tokenizers package
transformers: 5 ids; backend of a deep copy: 2 ids
OUTPUT
