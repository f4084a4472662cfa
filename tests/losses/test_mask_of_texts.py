"""With texts as target the mask alone ends the predictions; one beyond their ends scores what the loss excludes."""

import warnings

import pytest
import torch
from transformers import AutoTokenizer

from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import certain

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["a black cat sat on the mat", "the weather is nice", "hello", "it rains in the north"]


def test_a_mask_with_the_end_tokens_is_reported_once(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows = tokenizer([f"{text} [SEP]" for text in TEXTS], add_special_tokens=False, padding=True, return_tensors="pt")
    ids, mask = rows["input_ids"], rows["attention_mask"].bool()
    content, logits = mask & (ids != tokenizer.sep_token_id), certain(encoder, ids)
    loss = SoftBERTScoreLoss(encoder)
    with pytest.warns(UserWarning, match="last position of the mask, the predictions of 4 of 4 rows are end tokens"):
        worse = loss(logits, TEXTS, mask)
    with warnings.catch_warnings(action="error"):
        loss(logits, TEXTS, mask)
        assert SoftBERTScoreLoss(encoder)(logits, TEXTS, content) < worse - 0.05
        SoftBERTScoreLoss(encoder)(logits, ids, mask)  # labels end at the end token themselves
        SoftBERTScoreLoss(encoder)(torch.zeros_like(logits), TEXTS, mask)  # nothing learned yet
        SoftBERTScoreLoss(encoder, length="eos")(logits, TEXTS, mask)
        SoftBERTScoreLoss(encoder)(logits, TEXTS, torch.zeros_like(mask))
