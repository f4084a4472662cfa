"""Soft losses: BERTScore of a generator's predictions, differentiable through the frozen encoder.

The steps are: logits or hidden states -> probabilities (relaxation) -> expected input embeddings -> soft tokens ->
encoder -> similarities -> matching -> loss. A bridge makes the soft tokens if the tokenizers differ.

``torch.compile`` supports neither custom autograd functions nor shapes that depend on the data. So where
:func:`bertscore_tm.device.onednn.is_eager` is false,

* all positions are predicted, also those without content (``predictions.py``), and logits become probabilities of the
  whole vocabulary at once, without chunks;
* rows keep their width, also if the longest text is shorter (``predictions.place_content``);
* labels are encoded as soft tokens, without the cache of references (``targets.encode_labels``);
* values of labels and the alignment of predictions and target are not checked.

The results are equal except for rounding. On an accelerator the last three hold for eager code too, except that the
alignment is checked, because reading the values would synchronize the device.
"""
