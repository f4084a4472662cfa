"""Interfaces of other BERTScore packages, as drop-in replacements: only an import changes.

* ``bertscore_tm.compat.bert_score``: ``score``, ``BERTScorer`` and ``plot_example`` of ``bert-score`` 0.3.13.
* ``bertscore_tm.compat.torchmetrics``: the class ``BERTScore`` and the function ``bert_score`` of torchmetrics 1.9.
* ``bertscore_tm.compat.evaluate``: ``load("bertscore")`` of Hugging Face's ``evaluate``.

Parameters, defaults, results and their meaning are those of the other package, except where it is wrong:
https://github.com/bertscore-tm/bertscore-tm/blob/main/examples/docs/migrating.md lists all differences.
"""
