"""An encoder whose vocabulary is cut to some texts, for small generators that share it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from bertscore_tm import FrozenEncoder

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}


def encoder_of_texts(folder: str, texts: Sequence[str], num_layers: int) -> FrozenEncoder:
    """Cut a BERT encoder's vocabulary to the tokens of some texts; their token vectors stay the same.

    For a generator this equals never predicting another token. The ids of the special tokens are 0 to 3.
    """
    original = AutoTokenizer.from_pretrained(folder)
    used = {token for text in texts for token in original.tokenize(text)}
    tokens = [*SPECIALS.values(), *sorted(used)]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    around = [(token, tokens.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    roles = {f"{role}_token": token for role, token in SPECIALS.items()}
    model = AutoModel.from_pretrained(folder)
    rows = model.get_input_embeddings().weight.detach()[original.convert_tokens_to_ids(tokens)]
    model.set_input_embeddings(nn.Embedding.from_pretrained(rows, padding_idx=0))
    model.config.vocab_size = len(tokens)
    cut = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=original.model_max_length, **roles)
    return FrozenEncoder(model, cut, num_layers=num_layers)
