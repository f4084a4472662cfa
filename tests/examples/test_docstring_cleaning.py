"""Cleaning and selection of docstrings."""

from __future__ import annotations

import string
import textwrap

import pytest

from examples.docstring_cleaning import document_and_summary

LONG = "The remaining text has more than enough plain words to count as one whole document"
GOOD = "Opens the gate for visitors."


def clean(docstring: str) -> tuple[str, str] | None:
    """Returns the (document, summary) that the module makes of one docstring."""
    return document_and_summary(textwrap.dedent(docstring))


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (LONG, f"{LONG}."),
        (f"{LONG} [`~pipelines.Pipeline`] and [`Tool`].", f"{LONG} Pipeline and Tool."),
        (f"{LONG} [a link](https://example.org/x) here.", f"{LONG} a link here."),
        (f"{LONG} :ref:`a title <some-target>` here.", f"{LONG} a title here."),
        (f"{LONG} :py:meth:`Thing.run()` here.", f"{LONG} run() here."),
        (f"{LONG} [1]_ and [Knuth97]_.", f"{LONG} and."),
        (f"{LONG} <b>loud</b> (https://example.org).", f"{LONG} loud."),
        (f"{LONG}. For more, see https://example.org/a.html. The end.", f"{LONG}. The end."),
        (f"{LONG} *args and **kwargs stay.", f"{LONG} *args and **kwargs stay."),
        (f"{LONG}\n\n- first\n- second\n\n1. third", f"{LONG}. first. second. third."),
        (
            f"{LONG}\n\n:param int size: How big.\n:rtype: int\n:returns: The box.",
            f"{LONG}. size: How big. Returns: The box.",
        ),
        (f"{LONG}\n\nx_ids (`Tensor` of shape `(a, b)`):\n    The ids.", f"{LONG}. x_ids: The ids."),
        (f"{LONG}\n\nReturns:\n\nRaises:\n    ValueError: If bad.", f"{LONG}. Raises: ValueError: If bad."),
        (f"{LONG}\n\nReturns:\n", f"{LONG}."),
        (f"{LONG}\n\nReferences:\n    A paper from long ago.\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}\n\n[[autodoc]] Thing\n    - all", f"{LONG}. all."),
        (f"{LONG}\n\n<Tip>\n\nBe careful.\n\n</Tip>", f"{LONG}. Be careful."),
        (f"{LONG}\n\n.. note:: Be careful.\n    Very.", f"{LONG}. Be careful. Very."),
        (f"{LONG}\n\n.. deprecated:: 2.0\n    Gone soon.\n\n.. [1] A paper.\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}\n\n>>> run()\nthe output\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}\n\n```python\nrun()\n```\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}. Run it::\n\n    run()\n\nThe end.", f"{LONG}. Run it. The end."),
        (f"{LONG}\n\n====  ====\n| a  | b |\n====  ====\n\nThe end.", f"{LONG}. The end."),
        (
            f"{LONG}\n\n.. math::\n    \\frac{{a}}{{b}}\n\nwhere a is it.\n\nNot :math:`\\sum a`.\n\nThe end.",
            f"{LONG}. The end.",
        ),
        (f"{LONG}\n\nTODO: write more.\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}\n\nDetails\n-------\nThe end.", f"{LONG}. Details: The end."),
        (f"{LONG}\n---------- file.py ----------", f"{LONG} file.py."),
        (f"{LONG}\n>>> run()\nthe output\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}\n\nsize: how big\ncolor: how red", f"{LONG}. size: how big. color: how red."),
        (f"{LONG} \\*stars\\* stay.", f"{LONG} *stars* stay."),
        (f"{LONG}\x07 and \udc80more.", f"{LONG} and more."),
    ],
)
def test_cleaning_rules(rest: str, expected: str) -> None:
    assert clean(f"{GOOD}\n\n{rest}\n") == (expected, GOOD)


@pytest.mark.parametrize(
    ("summary", "kept"),
    [
        ("Opens the gate for visitors.", True),
        ("Opens three words.", False),
        ("Opens four words only.", True),
        (" ".join(["Opens", *["word"] * 22, "end."]), True),
        (" ".join(["Opens", *["word"] * 23, "end."]), False),
        ("Opens the gate for visitors", False),
        ("Opens the gate for visitors:", False),
        ("Opens the gate, e.g. for visitors.", True),
        ("opens the gate for visitors.", False),
        ("Opens the gäte for visitors.", False),
        ("Opens 1234 gates, 5678 + 9012.", False),
        ("Opens the gate at https://example.org now.", False),
        ("Opens the gate where x = y holds.", False),
        ("Deprecated gate for all visitors.", False),
    ],
)
def test_summaries_are_selected(summary: str, kept: bool) -> None:
    assert clean(f"{summary}\n\n{LONG}.\n") == ((f"{LONG}.", summary) if kept else None)


def test_document_length_limits() -> None:
    letters = string.ascii_lowercase
    words = [a + b + "word" for a in letters for b in letters]
    assert clean(f"{GOOD}\n\n{' '.join(words[:11])}.") is None
    assert clean(f"{GOOD}\n\n{' '.join(words[:12])}.") == (" ".join(words[:12]) + ".", GOOD)
    assert clean(f"{GOOD}\n\n{' '.join(words[:120])}.") == (" ".join(words[:120]) + ".", GOOD)
    assert clean(f"{GOOD}\n\n{' '.join(words[:121])}.") == (" ".join(words[:120]), GOOD)
    assert clean(GOOD) is None


def test_document_of_numbers_is_dropped() -> None:
    assert clean(f"{GOOD}\n\n{' '.join(map(str, range(100)))}") is None
