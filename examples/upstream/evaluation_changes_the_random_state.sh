#!/usr/bin/env bash
# In evaluation mode, some models of transformers draw random numbers, so that a validation changes the training after it.
#
# Versions: transformers 5.17.0, torch 2.13.0, Python 3.11.
# Expected: a model in evaluation mode without dropout leaves torch's random state as it is.
# Behaviour: the encoders of LED, FSMT and NLLB-MoE draw a number per layer for LayerDrop before they look whether they
#   train. Two runs with one seed differ from the first validation on, if one of them validates more often. BART, which
#   looks first, leaves the state alone; so does LED in transformers 5.23.0.
# Output seen:
#   bart: random state as before
#   led: random state changed
#   fsmt: random state changed
#   nllb-moe: random state changed
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet transformers==5.17.0

cat > validate.py <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModel

sizes = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
extra = {
    "led": {"attention_window": [8, 8]},
    "fsmt": {"src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]},
    "nllb-moe": {"num_experts": 2},
}
for kind in ("bart", "led", "fsmt", "nllb-moe"):
    config = AutoConfig.for_model(kind, vocab_size=100, **sizes, **extra.get(kind, {}))
    encoder = AutoModel.from_config(config).eval().get_encoder()
    before = torch.get_rng_state()
    with torch.no_grad():
        encoder(input_ids=torch.arange(4, 12)[None], attention_mask=torch.ones(1, 8, dtype=torch.long))
    print(f"{kind}: random state", "as before" if torch.equal(torch.get_rng_state(), before) else "changed")
PYTHON

venv/bin/python validate.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
bart: random state as before
led: random state changed
fsmt: random state changed
nllb-moe: random state changed
OUTPUT
