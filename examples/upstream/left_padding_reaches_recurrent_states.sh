#!/usr/bin/env bash
# Some recurrent models of transformers read left padding although the attention mask marks it; others do not.
#
# Versions: transformers 5.24.0, torch 2.13.0, Python 3.11.
# Expected: with attention_mask, padding changes no hidden state of a real token, as in generate() with a batch of prompts,
#   which are padded on the left; or a model that cannot do so raises an error or a warning.
# Behaviour: Mamba and Jamba set the states of padding to 0 and give a prompt the same vectors in a batch as alone.
#   RecurrentGemma takes the mask, and RWKV swallows it, but both run through the padding first: the last token's vector
#   differs from that of the prompt alone by as much as that of another prompt. Nothing is said.
# Output seen (the direction of the last token's vector, compared with that of the prompt alone):
#   mamba: equal
#   jamba: equal
#   recurrent_gemma: changed
#   rwkv: changed
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet transformers==5.24.0

cat > pad.py <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModel

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 3, "pad_token_id": 0}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
KINDS = {
    "mamba": {},
    "jamba": HEADS | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "use_mamba_kernels": False},
    "recurrent_gemma": HEADS | {"lru_width": 32},
    "rwkv": {"attention_hidden_size": 32},
}
PROMPT = torch.tensor([[5, 17, 42, 9, 63]])
PADDED = torch.cat([torch.zeros(1, 6, dtype=torch.long), PROMPT], 1)

for kind, sizes in KINDS.items():
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
        alone = model(PROMPT, attention_mask=torch.ones_like(PROMPT)).last_hidden_state[0, -1]
        padded = model(PADDED, attention_mask=(PADDED != 0).long()).last_hidden_state[0, -1]
    cosine = torch.cosine_similarity(alone, padded, dim=0).item()
    print(f"{kind}: {'equal' if cosine > 0.9999 else 'changed'}")
PYTHON

HF_HUB_OFFLINE=1 venv/bin/python pad.py 2> errors.txt > seen.txt || { cat errors.txt; exit 1; }
cat seen.txt
printf '%s\n' "mamba: equal" "jamba: equal" "recurrent_gemma: changed" "rwkv: changed" | diff - seen.txt
