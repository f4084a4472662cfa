"""Where the likeliest word is not the best one, the loss chooses better than cross-entropy alone.

Two synonyms share more probability than an unrelated word has, but each alone has less.
"""

from itertools import chain

import pytest
import torch
from torch.nn.functional import cross_entropy

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.small_encoder import encoder_of_texts
from tests.support.soft_predictions import content_ids, padded

# The last layer separates unrelated words best, and the task rewards that difference. At layer 5 the prize is little
# more than half as large, and cross-entropy at weight 1 outweighs it once predictions are certain.
LAYER, STEPS = 6, 20
# Of 25 references, the numbers with a, b and c: a and b together are likelier than c, each alone is not.
COUNTS = (8, 8, 9)

# Sentence, synonym a, synonym b, an unrelated word that fits the sentence.
TEMPLATES = (
    ("the {} in his room broke", "television", "tv", "window"),
    ("her {} is very long", "speech", "talk", "hair"),
    ("the king was {}", "rich", "wealthy", "blind"),
    ("the {} stole our money", "thief", "robber", "lawyer"),
    ("it was a {} night", "quiet", "silent", "hot"),
    ("the {} cried all night", "baby", "infant", "widow"),
    ("the {} was too expensive", "trip", "journey", "ring"),
    ("they {} the old bridge", "built", "constructed", "crossed"),
    ("please {} your room", "clean", "tidy", "describe"),
    ("he has a {} for you", "gift", "present", "letter"),
    ("the {} ruined the town", "tornado", "hurricane", "mayor"),
    ("the dog was {}", "sick", "ill", "brown"),
    ("the {} of the play was weak", "end", "ending", "music"),
    ("our {} won the prize", "team", "squad", "cook"),
    ("the road is {}", "dangerous", "risky", "narrow"),
    ("he put a {} on the table", "stone", "rock", "cup"),
    ("the {} cured him", "drug", "medicine", "priest"),
    ("they {} to help us", "attempted", "tried", "flew"),
)
SENTENCES = [[template.format(word) for word in words] for template, *words in TEMPLATES]
REFERENCES = [[text for text, count in zip(known, COUNTS, strict=True) for _ in range(count)] for known in SENTENCES]


@pytest.fixture(scope="module")
def judge(minilm):
    return FrozenEncoder(minilm, num_layers=LAYER)


@pytest.fixture(scope="module")
def generator(minilm):
    """What shares the logits' vocabulary: the same encoder, with the words of the task alone."""
    return encoder_of_texts(minilm, list(chain(*SENTENCES)), LAYER)


def test_the_score_prefers_synonyms_in_every_template(generator, judge):
    every = list(chain(*SENTENCES))
    # One token for every word, so that the words of a template stand in the same place.
    assert [len(ids) - 2 for ids in judge.tokenizer(every).ids] == [len(text.split()) for text in every]
    candidates = [text for texts in SENTENCES for text in texts for _ in texts]
    references = [text for texts in SENTENCES for _ in texts for text in texts]
    f1 = bert_score(candidates, references, judge)["f1"]
    assert len(generator.tokenizer.vocabulary) < 300
    torch.testing.assert_close(bert_score(candidates, references, generator)["f1"], f1, rtol=0, atol=1e-6)
    expected = f1.view(-1, 3, 3) @ torch.tensor(COUNTS, dtype=torch.float32)
    # Cross-entropy is lowest for c, the expected score highest for a or b.
    assert max(COUNTS) == COUNTS[2]
    assert (expected.argmax(1) != 2).all()


def train(generator, judge, loss):
    """Learn logits of each template from all references; return how often a or b is chosen, and the mean F1."""
    labels = padded(content_ids(generator, list(chain(*REFERENCES)))).view(len(SENTENCES), sum(COUNTS), -1)
    content = labels[:, 0] >= 0
    logits = torch.zeros(*content.shape, len(generator.embedding_table("cpu")), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.5, eps=1e-12)
    for _ in range(STEPS):
        surprisal = cross_entropy(logits.mT[..., None].expand(-1, -1, -1, sum(COUNTS)), labels.mT, reduction="none")
        value = (surprisal.mean(-1).sum(1) / content.sum(1)).mean()
        if loss is not None:
            value = value + loss(logits, REFERENCES, content)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    likeliest = logits.detach().clone()
    likeliest[..., generator.tokenizer.control_ids] = -torch.inf
    rows = zip(likeliest.argmax(-1), content, strict=True)
    learnt = [" ".join(generator.tokenizer.tokens(row[kept].tolist())) for row, kept in rows]
    synonyms = sum(text in known[:2] for text, known in zip(learnt, SENTENCES, strict=True))
    candidates = [text for text in learnt for _ in range(sum(COUNTS))]
    return synonyms, bert_score(candidates, list(chain(*REFERENCES)), judge)["f1"].mean().item()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_beats_cross_entropy(generator, judge):
    loss = SoftBERTScoreLoss(generator, references_reduce="mean", cache_bytes=2**22)
    alone, both = (train(generator, judge, which) for which in (None, loss))
    assert both[0] >= alone[0] + 10
    assert both[1] >= alone[1] + 0.01
