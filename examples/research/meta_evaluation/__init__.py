"""Agreement of BERTScore with human judgements: the protocols of Zhang et al. (ICLR 2020) on files of judgements.

    python -m examples.research.meta_evaluation FILE... --idf

README.md documents formats, protocols and measured figures.
"""
