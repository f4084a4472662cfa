"""Words that cost a system its score, in headless Chromium."""

from itertools import chain

import pytest
import torch

from bertscore_tm import align
from bertscore_tm.report import Report
from tests.support.browser import column


def loss_of_words(candidates, references, encoder, side):
    """Return what each word of a side loses, 1 minus its similarity, in each place."""
    losses = {}
    for candidate, reference in zip(candidates, references, strict=True):
        aligned = getattr(align(candidate, reference, encoder), side)
        assert aligned.tokens == {"candidate": candidate, "reference": reference}[side].split()
        for token, best in zip(aligned.tokens, aligned.best.tolist(), strict=True):
            losses.setdefault(token, []).append(1 - best)
    return losses


def test_missed_words_lose_more_than_the_mean_word(show, encoder):
    """Frequent words lose most in sum; what counts is the excess over the mean loss, of words with a letter."""
    references = ["the cat sat .", "the dog sat .", "the bird sat .", "the zebra sat .", "the horse ate 9 ."] * 2
    candidates = ["a cat was sitting", "dog sat", "this bird sat", "it sat", "one horse ate"] * 2
    losses = loss_of_words(candidates, references, encoder, "reference")
    mean = sum(map(sum, losses.values())) / sum(map(len, losses.values()))
    excess = {word: sum(of) - mean * len(of) for word, of in losses.items()}
    expected = [word for word in sorted(excess, key=excess.get, reverse=True) if word.isalpha() and excess[word] > 0]
    sums = sorted(losses, key=lambda word: -sum(losses[word]))
    assert sums[: len(expected)] != expected
    page = show(Report.from_texts(candidates, references, encoder))
    lines = page.locator("#words table").first.locator("tbody tr")
    cells = [line.locator("td").all_inner_texts() for line in lines.all()]
    similarity = {word: 1 - sum(losses[word]) / len(losses[word]) for word in expected}
    assert cells == [[word, f"{similarity[word]:.3f}", str(len(losses[word]))] for word in expected]


@pytest.mark.parametrize(("side", "place"), [("reference", 0), ("candidate", 1)])
def test_words_that_b_matches_better_are_not_among_its_losses(show, encoder, side, place):
    """A repeats words, and matches most words worse, so that sums over unequal counts speak against B."""
    references = ["the cat sat on the mat", "a dog ran to the house", "the sun was out today", "he sold the old car"]
    systems = {
        "a": ["the cat and the cat sat", "the dog and the dog ran", "the sun and the moon", "he sold a car"],
        "b": ["the cat sat on a rug", "a zebra ran to his home", "sun was out there", "he bought the old car"],
    }
    in_a, in_b = (loss_of_words(texts, references, encoder, side) for texts in systems.values())
    mean_of_a = torch.tensor([*chain.from_iterable(in_a.values())]).mean().item()
    excess = {}
    for word, losses in in_b.items():
        expected = torch.tensor(in_a[word]).mean().item() if word in in_a else mean_of_a
        excess[word] = sum(losses) - len(losses) * expected
    expected = [word for word in sorted(excess, key=excess.get, reverse=True) if excess[word] > 0.005][:8]
    assert "cat" in in_b
    assert "cat" not in expected
    page = show(Report.from_texts(systems, references, encoder))
    page.select_option("#a", "0")
    page.select_option("#b", "1")
    table = page.locator("#words table").nth(place)
    cells = [line.locator("td").all_inner_texts() for line in table.locator("tbody tr").all()]
    assert [word for word, *_ in cells] == expected
    for word, of_a, of_b, _ in cells:
        assert of_a == "–" if word not in in_a else float(of_a) > float(of_b)
    has_new_word = any(word not in in_a for word in expected)
    assert ("a word that A does not have (–)" in table.locator("caption").inner_text()) == has_new_word


def test_a_word_shows_the_pairs_of_its_side_and_systems(show, encoder):
    """The third system says a word that the others do not, and candidates one that references do not."""
    references = ["the cat sat there", "a dog ran home", "the sun was out"]
    systems = {
        "first": references,
        "middle": ["zebra cat sat there", "a dog ran home", "the sun was out"],
        "last": ["the cat sat there", "a zebra ran home", "the zebra was out"],
    }
    page = show(Report.from_texts(systems, [*references[:2], "the zebra was out"], encoder))
    page.click("#matrix-1-0")
    missed = page.locator("#words table").last.locator("tbody tr", has_text="zebra")
    assert missed.locator("td").last.inner_text() == "1"
    missed.locator("button").click()
    assert column(page, 1) == ["1"]
    other = page.url
    page.goto("about:blank")
    page.goto(other)
    page.wait_for_selector("body[data-ready]")
    assert column(page, 1) == ["1"]
