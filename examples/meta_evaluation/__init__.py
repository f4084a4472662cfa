"""How well BERTScore agrees with people: the protocols of Zhang et al. (ICLR 2020) over files of human judgements.

    python -m examples.meta_evaluation FILE... --model MODEL --layers 1-6 --idf --compare-with-reference --json OUT

Formats, protocols and measured figures are in the README beside this file.
"""
