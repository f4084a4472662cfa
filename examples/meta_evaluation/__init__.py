"""Agreement of BERTScore with human judgements: the protocols of Zhang et al. (ICLR 2020) on files of judgements.

    python -m examples.meta_evaluation FILE... --model MODEL --layers 1-6 --idf --compare-with-reference --json OUT

README.md documents formats, protocols and measured figures.
"""
