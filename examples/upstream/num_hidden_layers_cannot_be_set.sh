#!/usr/bin/env bash
# num_hidden_layers, the common name of the number of layers in transformers, cannot be set for ProphetNet.
#
# Versions: transformers 5.24.0, Python 3.11.
# Expected: num_hidden_layers can be set for all models of text, also those with an encoder and a decoder, so
#   that AutoConfig.for_model(model_type, num_hidden_layers=2) makes a small model of any type.
# Behaviour: BART, FSMT and T5 take it as the number of the encoder's layers. ProphetNet has it as well, but raises
#   NotImplementedError for it, in the call and as an attribute.
# Output seen:
#   bart: 2
#   fsmt: 2
#   t5: 2
#   prophetnet: NotImplementedError
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0

cat > layers.py <<'PYTHON'
from transformers import AutoConfig

for kind in ("bart", "fsmt", "t5", "prophetnet"):
    config = AutoConfig.for_model(kind)
    assert config.num_hidden_layers > 2
    try:
        config = AutoConfig.for_model(kind, num_hidden_layers=2)
        print(f"{kind}: {config.num_hidden_layers}")
    except NotImplementedError as error:
        print(f"{kind}: {type(error).__name__}")
PYTHON

venv/bin/python layers.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
bart: 2
fsmt: 2
t5: 2
prophetnet: NotImplementedError
OUTPUT
