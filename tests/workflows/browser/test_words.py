"""Words that cost a system its score, in headless Chromium."""

from itertools import chain

import pytest
import torch

from bertscore_tm import align
from bertscore_tm.report import Report
from tests.support.browser import column, keep_page


def loss_of_words(candidates, references, encoder, side):
    """Return what each word of a side loses in each place: 1 minus its similarity, which a page has with 3 decimals."""
    losses = {}
    for candidate, reference in zip(candidates, references, strict=True):
        aligned = getattr(align(candidate, reference, encoder), side)
        assert aligned.tokens == {"candidate": candidate, "reference": reference}[side].split()
        for token, best in zip(aligned.tokens, aligned.best.tolist(), strict=True):
            losses.setdefault(token, []).append(1 - round(best, 3))
    return losses


def rank_words(excess, least=0.0):
    """Return the words whose excess is above the least, the largest first."""
    words = [word for word in excess if excess[word] > least]
    return sorted(words, key=excess.get, reverse=True)


def texts_of(table):
    """Return the texts of the cells of a table of words, row by row."""
    return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]


def test_missed_words_lose_more_than_the_mean_word(show, encoder):
    """Frequent words lose most in sum; what counts is the excess over the mean loss, of words with a letter."""
    references = ["the cat sat .", "the dog sat .", "the bird sat .", "the zebra sat .", "the horse ate 9 ."] * 2
    candidates = ["a cat was sitting", "dog sat", "this bird sat", "it sat", "one horse ate"] * 2
    losses = loss_of_words(candidates, references, encoder, "reference")
    every_loss = list(chain.from_iterable(losses.values()))
    mean = sum(every_loss) / len(every_loss)
    excess = {word: sum(of_word) - mean * len(of_word) for word, of_word in losses.items() if word.isalpha()}
    expected = rank_words(excess)
    by_sum = sorted(losses, key=lambda word: sum(losses[word]), reverse=True)
    assert by_sum[: len(expected)] != expected

    page = show(Report.from_texts(candidates, references, encoder))

    rows = texts_of(page.locator("#words table").first)
    assert [word for word, _, _ in rows] == expected
    for word, similarity, count in rows:
        assert float(similarity) == pytest.approx(1 - sum(losses[word]) / len(losses[word]), abs=6e-4)
        assert count == str(len(losses[word]))


# A repeats words, and matches most words worse, so that sums over unequal counts speak against B.
REFERENCES = ["the cat sat on the mat", "a dog ran to the house", "the sun was out today", "he sold the old car"]
REPEATING = ["the cat and the cat sat", "the dog and the dog ran", "the sun and the moon", "he sold a car"]
OTHER = ["the cat sat on a rug", "a zebra ran to his home", "sun was out there", "he bought the old car"]


@pytest.mark.parametrize(("side", "place"), [("reference", 0), ("candidate", 1)])
def test_words_that_b_matches_better_are_not_among_its_losses(show, encoder, side, place):
    in_a = loss_of_words(REPEATING, REFERENCES, encoder, side)
    in_b = loss_of_words(OTHER, REFERENCES, encoder, side)
    mean_of_a = torch.tensor(list(chain.from_iterable(in_a.values()))).mean().item()
    excess = {}
    for word, losses in in_b.items():
        loss_in_a = mean_of_a
        if word in in_a:
            loss_in_a = sum(in_a[word]) / len(in_a[word])
        excess[word] = sum(losses) - len(losses) * loss_in_a
    expected = rank_words(excess, least=0.005)[:8]
    assert "cat" in in_b
    assert "cat" not in expected

    page = show(Report.from_texts({"a": REPEATING, "b": OTHER}, REFERENCES, encoder))
    page.select_option("#a", "0")
    page.select_option("#b", "1")

    table = page.locator("#words table").nth(place)
    rows = texts_of(table)
    assert [word for word, *_ in rows] == expected
    for word, of_a, of_b, _ in rows:
        if word in in_a:
            assert float(of_a) > float(of_b)
        else:
            assert of_a == "–"
    has_new_word = not in_a.keys() >= set(expected)
    assert ("a word that A does not have (–)" in table.locator("caption").inner_text()) == has_new_word


def test_a_word_shows_the_pairs_of_its_side_and_systems(show, encoder):
    """The third system says a word that the others do not, and candidates one that references do not."""
    references = ["the cat sat there", "a dog ran home", "the zebra was out"]
    systems = {
        "first": ["the cat sat there", "a dog ran home", "the sun was out"],
        "middle": ["zebra cat sat there", "a dog ran home", "the sun was out"],
        "last": ["the cat sat there", "a zebra ran home", "the zebra was out"],
    }
    report = keep_page(Report.from_texts(systems, references, encoder))
    page = show(report)
    page.click("#matrix-1-0")
    missed = page.locator("#words table").last.locator("tbody tr", has_text="zebra")
    assert missed.locator("td").last.inner_text() == "1"

    missed.locator("button").click()

    assert column(page, 1) == ["1"]
    page = show(report, view=f"#{page.url.partition('#')[2]}")
    assert column(page, 1) == ["1"]
