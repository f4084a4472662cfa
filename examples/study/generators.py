"""The generator of the study: small enough that each arm takes minutes on a processor."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, EncoderDecoderModel, PreTrainedModel

__all__ = ["build_generator"]


def build_generator(name: str, layers: int) -> tuple[PreTrainedModel, Any]:
    """Return a sequence-to-sequence model and its tokenizer.

    Args:
        name: a sequence-to-sequence model, which is trained whole; or an encoder, whose first layers start both halves
            of an encoder-decoder. Of that the attention between the halves is new, and the reading half and the table
            of tokens stay as they are: they are good from the start, and steps are cheaper.
        layers: number of layers of each half that is started from an encoder.

    Returns:
        Model and tokenizer.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=False), tokenizer
    except ValueError:  # not a sequence-to-sequence model
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(
            name, name, encoder_num_hidden_layers=layers, decoder_num_hidden_layers=layers
        )
    model.encoder.requires_grad_(False)
    model.get_output_embeddings().weight.requires_grad_(False)
    model.decoder.get_input_embeddings().weight.requires_grad_(False)
    start, end, padding = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = start, end, padding
    return model, tokenizer
