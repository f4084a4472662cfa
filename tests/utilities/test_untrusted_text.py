"""Text of users and models for terminals and spreadsheets."""

import json
import sys
import unicodedata

import pytest

from bertscore_tm.utilities.untrusted_text import for_spreadsheet, for_terminal


def test_control_characters_alone_are_escaped():
    # The planes in between have characters of two categories only: letters, and code points without a character.
    codes = [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode]
    every = list(map(chr, codes))
    control = [character for character in every if unicodedata.category(character) in ("Cc", "Cs")]

    escaped = [character for character in every if for_terminal(character) != character]

    assert escaped == control


def test_no_control_character_reaches_the_terminal():
    assert for_terminal("a\x1b[2J\x9b1m\n\tü\u200d") == "a\\u001b[2J\\u009b1m\\u000a\\u0009ü\u200d"
    assert for_terminal("a\n\tb\r\x07", keep="\n\t") == "a\n\tb\\u000d\\u0007"


def test_escapes_keep_the_meaning_of_json():
    value = {"text": "".join(map(chr, range(0x100))) + "\ud800"}

    written = for_terminal(json.dumps(value, ensure_ascii=False), keep="\n")

    assert json.loads(written) == value
    written.encode()


@pytest.mark.parametrize("start", ["=", "@", "+", "-", "\t", "\r", " =", "\n=", "\u00a0+", "\uff1d"])
def test_a_formula_becomes_a_text(start):
    assert for_spreadsheet(f'{start}HYPERLINK("x")') == f'\'{start}HYPERLINK("x")'


@pytest.mark.parametrize("text", ["", "a = b", "'=1", " a-b", "(=1)", "\nfirst line", "1-2"])
def test_other_texts_stay(text):
    assert for_spreadsheet(text) == text
