"""The interfaces of other packages: only an import changes.

* ``bertscore_tm.compat.bert_score``: ``score``, ``BERTScorer`` and ``plot_example`` of ``bert-score`` 0.3.13.
* ``bertscore_tm.compat.torchmetrics``: the class ``BERTScore`` and the function ``bert_score`` of torchmetrics 1.9.
* ``bertscore_tm.compat.evaluate``: ``load("bertscore")`` of Hugging Face's ``evaluate``.

Parameters, defaults, results and their meaning are those of the other package, except where it is wrong. All of them:

* Scores do not depend on other texts of the batch: padding is never matched. An empty text scores 0, and weights that
  sum to 0 give 0 instead of NaN.
* RoBERTa and GPT-2 get a space before each text, as in all published scores. transformers 5 ignores this request.
* A missing baseline is an error instead of scores that are not rescaled. Published tables come with this package.
* Texts are truncated with a warning, and at the model's limit where the tokenizer declares none.
* F1 is clamped to [-1, 1] where precision or recall is negative and the formula has a pole.
* Every layer of a model with a final norm is normalized, also below the last.
* The hash is this package's signature, which names everything that changes a score.

Of ``bert-score`` and ``evaluate``:

* Several references with all layers return shape (layers, candidates).
* ``BERTScorer.score`` refuses unequal numbers of candidates and references, which are a ``ValueError``.
* A local folder whose configuration names a listed model has its layer and baseline.
* ``evaluate``: idf weights are computed at each call, and a dictionary passed as ``idf`` is used.

Of torchmetrics:

* Each prediction is scored against its own references, also over several updates, and on any number of ranks.
* Special tokens can be matched, as in ``bert-score``; they carry no weight.
* A single pair returns shape (1,), or (layers, 1) with all layers. Updates without pairs are accepted.
* The model is not a submodule. The metric encodes in ``update``, on the metric's device; ``device=`` only moves the
  metric there. The function uses a GPU if there is one.
* ``user_tokenizer`` must be a tokenizer of transformers, and texts cannot be passed as tokens.
* ``baseline_url`` is an error: download the table, and pass it as ``baseline_path``.
"""
