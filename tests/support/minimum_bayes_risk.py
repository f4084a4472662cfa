"""A task where the likeliest word is not the best: two synonyms share more probability than an unrelated word has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss

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

# Probabilities of a, b and c: a and b together are likelier than c, each alone is not.
SHARES = (0.32, 0.32, 0.36)
STEPS, SAMPLES, HELD_OUT = 120, 4, 25


def sentences() -> list[list[str]]:
    """Return each template's three sentences, with a, b and c."""
    return [[template.format(word) for word in words] for template, *words in _TEMPLATES]


@dataclass(frozen=True)
class Outcome:
    """Result of a training run.

    Args:
        f1: mean BERTScore F1 of the likeliest sentences against references that were not seen.
        chosen: how many templates ended with a, b, c or any other word.
    """

    f1: float
    chosen: tuple[int, int, int, int]

    @property
    def synonyms(self) -> int:
        """Number of templates where a or b was chosen."""
        return self.chosen[0] + self.chosen[1]


def train(
    seed: int, generator: FrozenEncoder, judge: FrozenEncoder, loss: SoftBERTScoreLoss | None, weight: float = 1.0
) -> Outcome:
    """Learn logits of each template from sampled references, with cross-entropy and optionally a loss.

    Args:
        seed: seed of the references, which are the same with and without a loss.
        generator: encoder whose vocabulary the logits have.
        judge: the encoder of the score against unseen references.
        loss: added to cross-entropy, with ``references="mean"``.
        weight: weight of the loss.

    Returns:
        The outcome.
    """
    said = sentences()
    before, after = generator.tokenizer.special_affixes
    ids = [row[len(before) : len(row) - len(after)] for row in generator.tokenizer(list(chain(*said))).ids]
    labels = pad_sequence([torch.tensor(row) for row in ids], batch_first=True, padding_value=-100)
    labels = labels.view(len(said), 3, -1)
    content = labels[:, 0] >= 0
    random = torch.Generator().manual_seed(seed)
    shares = torch.tensor(SHARES).expand(len(said), 3)
    logits = torch.zeros(*content.shape, len(generator.embedding_table(labels.device)), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05, eps=1e-12)
    for _ in range(STEPS):
        drawn = torch.multinomial(shares, SAMPLES, replacement=True, generator=random)
        targets = labels.gather(1, drawn[..., None].expand(-1, -1, labels.shape[-1]))
        surprisal = cross_entropy(logits.mT[..., None].expand(-1, -1, -1, SAMPLES), targets.mT, reduction="none")
        value = (surprisal.mean(-1).sum(1) / content.sum(1)).mean()
        if loss is not None:
            texts = [[known[j] for j in draws] for known, draws in zip(said, drawn.tolist(), strict=True)]
            value = value + weight * loss(logits, texts, content)
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
    unseen = torch.multinomial(shares, HELD_OUT, replacement=True, generator=random).tolist()
    candidates = [text for text in learnt for _ in range(HELD_OUT)]
    references = [known[j] for known, draws in zip(said, unseen, strict=True) for j in draws]
    return Outcome(bert_score(candidates, references, judge)["f1"].mean().item(), tuple(chosen))
