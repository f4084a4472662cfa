"""A task where the likeliest word is not the best: two synonyms share more probability than an unrelated word has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score

# Sentence, synonym a, synonym b, an unrelated word that fits the sentence.
_TEMPLATES = (
    ("he bought a {} last week", "car", "automobile", "guitar"),
    ("the {} arrived late this morning", "doctor", "physician", "painter"),
    ("the film was {}", "awful", "terrible", "short"),
    ("she is a {} student", "clever", "smart", "former"),
    ("the floor is still {}", "wet", "damp", "new"),
    ("they live in a {} house", "big", "large", "red"),
    ("he {} the door quietly", "closed", "shut", "painted"),
    ("the {} begins at noon", "game", "match", "lecture"),
    ("we saw a {} in the garden", "rabbit", "bunny", "bicycle"),
    ("the exam was quite {}", "hard", "difficult", "short"),
    ("my {} works at a bank", "mother", "mom", "neighbor"),
    ("the {} shouted at us", "cop", "policeman", "driver"),
    ("they {} the work on friday", "started", "began", "checked"),
    ("she felt {} after the race", "sad", "unhappy", "cold"),
    ("the ship sank in the {}", "sea", "ocean", "storm"),
    ("she typed the letter {}", "quickly", "rapidly", "twice"),
    ("there is a cat on the {}", "couch", "sofa", "roof"),
    ("we walked to the {}", "store", "shop", "river"),
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

# Of 25 references, the numbers with a, b and c: a and b together are likelier than c, each alone is not.
COUNTS = (8, 8, 9)
STEPS = 20


def sentences() -> list[list[str]]:
    """Return each template's three sentences, with a, b and c."""
    return [[template.format(word) for word in words] for template, *words in _TEMPLATES]


@dataclass(frozen=True)
class Outcome:
    """Result of a training run.

    Args:
        f1: mean BERTScore F1 of the likeliest sentences against all references.
        chosen: how many templates ended with a, b, c or any other word.
    """

    f1: float
    chosen: tuple[int, int, int, int]

    @property
    def synonyms(self) -> int:
        """Number of templates where a or b was chosen."""
        return self.chosen[0] + self.chosen[1]


def train(generator: FrozenEncoder, judge: FrozenEncoder, loss: Callable[..., Tensor] | None) -> Outcome:
    """Learn logits of each template from all references, with cross-entropy and optionally a loss.

    Args:
        generator: encoder whose vocabulary the logits have.
        judge: the encoder of the score.
        loss: added to cross-entropy: a ``SoftBERTScoreLoss`` with ``references="mean"``.

    Returns:
        The outcome.
    """
    said = sentences()
    references = [[text for text, count in zip(known, COUNTS, strict=True) for _ in range(count)] for known in said]
    before, after = generator.tokenizer.special_affixes
    ids = [row[len(before) : len(row) - len(after)] for row in generator.tokenizer(list(chain(*references))).ids]
    labels = pad_sequence([torch.tensor(row) for row in ids], batch_first=True, padding_value=-100)
    labels = labels.view(len(said), sum(COUNTS), -1)
    content = labels[:, 0] >= 0
    logits = torch.zeros(*content.shape, len(generator.embedding_table(labels.device)), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.5, eps=1e-12)
    for _ in range(STEPS):
        surprisal = cross_entropy(logits.mT[..., None].expand(-1, -1, -1, sum(COUNTS)), labels.mT, reduction="none")
        value = (surprisal.mean(-1).sum(1) / content.sum(1)).mean()
        if loss is not None:
            value = value + loss(logits, references, content)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    likeliest = logits.detach().clone()
    likeliest[..., generator.tokenizer.control_ids] = -torch.inf
    rows = zip(likeliest.argmax(-1), content, strict=True)
    learnt = [" ".join(generator.tokenizer.tokens(row[kept].tolist())) for row, kept in rows]
    chosen = [0, 0, 0, 0]
    for text, known in zip(learnt, said, strict=True):
        chosen[known.index(text) if text in known else 3] += 1
    candidates = [text for text in learnt for _ in range(sum(COUNTS))]
    f1 = bert_score(candidates, list(chain(*references)), judge)["f1"].mean().item()
    return Outcome(f1, tuple(chosen))
