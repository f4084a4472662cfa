"""A small translation task that needs no download: appointments in German words and English ones.

The sentences are made by rule: what happens, a weekday, a day and a month, and a time of day, all written out. German
says the units of a number before its tens ("dreiundzwanzigsten"), names the hour to come in half hours ("halb vier" is
half past three) and puts parts of the verb last, so a translator has to learn more than a dictionary. English has two
ways of saying each date and time, so that every sentence has two references. There are 614,880 sentences, but what a
model does with them says nothing about real translation.
"""

from __future__ import annotations

import math
import random
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

__all__ = ["Collate", "Translation", "make_translations", "small_translator"]

_EVENTS = (
    ("Wir treffen uns am {}.", "We meet on {}."),
    ("Der Unterricht fängt am {} an.", "The lesson starts on {}."),
    ("Das Konzert am {} fällt aus.", "The concert on {} is cancelled."),
    ("Mein Zug fährt am {} in Berlin ab.", "My train leaves Berlin on {}."),
    ("Am {} kommt meine Schwester an.", "My sister arrives on {}."),
)
_WEEKDAYS = {
    "Montag": "Monday",
    "Dienstag": "Tuesday",
    "Mittwoch": "Wednesday",
    "Donnerstag": "Thursday",
    "Freitag": "Friday",
    "Samstag": "Saturday",
    "Sonntag": "Sunday",
}
_MONTHS = {
    "Januar": "January",
    "Februar": "February",
    "März": "March",
    "April": "April",
    "Mai": "May",
    "Juni": "June",
    "Juli": "July",
    "August": "August",
    "September": "September",
    "Oktober": "October",
    "November": "November",
    "Dezember": "December",
}
_HOURS = {
    "eins": "one",
    "zwei": "two",
    "drei": "three",
    "vier": "four",
    "fünf": "five",
    "sechs": "six",
    "sieben": "seven",
    "acht": "eight",
    "neun": "nine",
    "zehn": "ten",
    "elf": "eleven",
    "zwölf": "twelve",
}
_ORDINALS = {
    "ersten": "first",
    "zweiten": "second",
    "dritten": "third",
    "vierten": "fourth",
    "fünften": "fifth",
    "sechsten": "sixth",
    "siebten": "seventh",
    "achten": "eighth",
    "neunten": "ninth",
    "zehnten": "tenth",
    "elften": "eleventh",
    "zwölften": "twelfth",
    "dreizehnten": "thirteenth",
    "vierzehnten": "fourteenth",
    "fünfzehnten": "fifteenth",
    "sechzehnten": "sixteenth",
    "siebzehnten": "seventeenth",
    "achtzehnten": "eighteenth",
    "neunzehnten": "nineteenth",
    "zwanzigsten": "twentieth",
    "einundzwanzigsten": "twenty-first",
    "zweiundzwanzigsten": "twenty-second",
    "dreiundzwanzigsten": "twenty-third",
    "vierundzwanzigsten": "twenty-fourth",
    "fünfundzwanzigsten": "twenty-fifth",
    "sechsundzwanzigsten": "twenty-sixth",
    "siebenundzwanzigsten": "twenty-seventh",
    "achtundzwanzigsten": "twenty-eighth",
    "neunundzwanzigsten": "twenty-ninth",
    "dreißigsten": "thirtieth",
    "einunddreißigsten": "thirty-first",
}


@dataclass(frozen=True)
class Translation:
    """A German sentence and its two English translations."""

    source: str
    references: list[str]


def make_translations(count: int, seed: int = 0) -> list[Translation]:
    r"""Return different sentences, chosen at random.

    Args:
        count: how many.
        seed: which.

    Returns:
        Sentences with their translations.

    Example:
        >>> translation = make_translations(1)[0]
        >>> print(translation.source, *translation.references, sep="\n")
        Mein Zug fährt am Freitag, dem vierzehnten Juli, um halb neun in Berlin ab.
        My train leaves Berlin on Friday, the fourteenth of July, at half past eight.
        My train leaves Berlin on Friday, July the fourteenth, at eight thirty.
    """
    # Of a leap year, so that all days there are can come.
    days = [(month, day) for month in range(12) for day in range(monthrange(2024, month + 1)[1])]
    sizes = (len(_EVENTS), len(_WEEKDAYS), len(days), len(_HOURS), 4)
    translations = []
    for number in random.Random(seed).sample(range(math.prod(sizes)), count):
        choices = []
        for size in sizes:
            number, choice = divmod(number, size)
            choices.append(choice)
        event, weekday, date, hour, quarter = choices
        translations.append(_translation(event, weekday, *days[date], hour, quarter))
    return translations


def _translation(event: int, weekday: int, month: int, day: int, hour: int, quarter: int) -> Translation:
    """One sentence; every number counts from 0."""
    source, target = _EVENTS[event]
    german_weekday, weekday_name = list(_WEEKDAYS.items())[weekday]
    german_month, month_name = list(_MONTHS.items())[month]
    german_day, ordinal = list(_ORDINALS.items())[day]
    german_time, *times = _times(hour, quarter)
    dates = (f"the {ordinal} of {month_name}", f"{month_name} the {ordinal}")
    return Translation(
        source.format(f"{german_weekday}, dem {german_day} {german_month}, um {german_time}"),
        [target.format(f"{weekday_name}, {date}, at {time}") for date, time in zip(dates, times, strict=True)],
    )


def _times(hour: int, quarter: int) -> tuple[str, str, str]:
    """A time of day in German, and in English in two ways."""
    hours = list(_HOURS.items())
    (german, english), (german_next, english_next) = hours[hour], hours[(hour + 1) % len(hours)]
    return (
        ("ein Uhr" if german == "eins" else f"{german} Uhr", f"{english} o'clock", english),
        (f"Viertel nach {german}", f"a quarter past {english}", f"{english} fifteen"),
        (f"halb {german_next}", f"half past {english}", f"{english} thirty"),
        (f"Viertel vor {german_next}", f"a quarter to {english_next}", f"{english} forty-five"),
    )[quarter]


def small_translator(
    translations: Sequence[Translation],
) -> tuple[BartForConditionalGeneration, PreTrainedTokenizerFast]:
    """Return a sequence-to-sequence model with random weights, and a tokenizer.

    Args:
        translations: what the tokenizer is made from.

    Returns:
        A model of under a million weights, and a byte-level BPE tokenizer with a token for every word. (With fewer,
        words would be cut at other places than the encoder cuts them, and the bridge of a loss would be refused.)
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text for each in translations for text in (each.source, *each.references)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    sizes = {f"{half}_layers": 2 for half in ("encoder", "decoder")}
    sizes |= {f"{half}_attention_heads": 4 for half in ("encoder", "decoder")}
    sizes |= {f"{half}_ffn_dim": 256 for half in ("encoder", "decoder")}
    config = BartConfig(
        vocab_size=len(fast),
        d_model=128,
        max_position_embeddings=64,
        dropout=0.0,
        pad_token_id=fast.pad_token_id,
        bos_token_id=fast.eos_token_id,
        eos_token_id=fast.eos_token_id,
        decoder_start_token_id=fast.eos_token_id,
        forced_eos_token_id=None,
        **sizes,
    )
    return BartForConditionalGeneration(config), fast


@dataclass(frozen=True)
class Collate:
    """Turn translations into a batch.

    It holds tokenized sources, labels of the first reference padded with -100, all references, and the translations'
    numbers.

    Args:
        tokenizer: the generator's tokenizer.
    """

    tokenizer: PreTrainedTokenizerFast

    def __call__(self, items: Sequence[tuple[int, Translation]]) -> dict[str, Any]:
        """Return the batch."""
        numbers, translations = zip(*items, strict=True)
        sources = self.tokenizer([each.source for each in translations], padding=True, return_tensors="pt")
        labels = self.tokenizer([each.references[0] for each in translations], padding=True, return_tensors="pt")
        return {
            "input_ids": sources["input_ids"],
            "attention_mask": sources["attention_mask"],
            "labels": labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100),
            "references": [each.references for each in translations],
            "index": torch.tensor(numbers),
        }
