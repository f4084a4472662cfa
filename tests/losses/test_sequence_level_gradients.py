"""Gradients of SelfCriticalLoss and MinimumRiskLoss, and policies that learn from them."""

from itertools import product

import pytest
import torch

from bertscore_tm.losses import BERTScoreReward, MinimumRiskLoss, SelfCriticalLoss
from tests.support.sequence_losses import (
    BOTH,
    both_losses,
    minimum_risk_loss,
    noise,
    self_critical_loss,
    sequences,
    slow_shares,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- gradients


def test_gradient_of_the_self_critical_loss_is_minus_the_advantage_at_every_token():
    log_probs, rewards, mask = sequences(4, 6)
    baseline = noise(4, seed=9)
    log_probs.requires_grad_()
    self_critical_loss(log_probs, rewards, mask, baseline, "sum").backward()
    expected = -(rewards - baseline)[:, None] * mask
    torch.testing.assert_close(log_probs.grad, expected)


@pytest.mark.parametrize("alpha", [0.005, 1.0])
def test_gradient_of_the_minimum_risk_loss_is_that_of_the_paper(alpha):
    log_probs, rewards, mask = sequences(4, 3, 6)
    log_probs.requires_grad_()
    minimum_risk_loss(log_probs, rewards, mask, alpha, "sum").backward()
    for item in range(4):
        shares = slow_shares(log_probs[item].detach(), mask[item], alpha)
        mean = sum(q * r for q, r in zip(shares, rewards[item].tolist(), strict=True))
        for candidate, share in enumerate(shares):
            gradient = -alpha * share * (rewards[item, candidate] - mean)
            torch.testing.assert_close(log_probs.grad[item, candidate], gradient * mask[item, candidate])


@BOTH
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck_from_the_logits(kind, reduction):
    _, rewards, mask = sequences(2, 3, 3)
    ids = torch.randint(4, (2, 3, 3, 1), generator=torch.Generator().manual_seed(0))
    logits = noise(2, 3, 3, 4, seed=5).requires_grad_()
    loss = both_losses(reduction)[kind]
    assert torch.autograd.gradcheck(lambda z: loss(z.log_softmax(-1).gather(-1, ids)[..., 0], rewards, mask), logits)


def every_sequence(num_tokens, length):
    return torch.tensor(list(product(range(num_tokens), repeat=length)))


def log_probs_of(logits, ids):
    """Of a policy that chooses each position by itself: logits (positions, vocabulary), ids (..., positions)."""
    table = logits.log_softmax(-1)
    return table[torch.arange(len(table)), ids]


@pytest.mark.parametrize("baseline", [0.0, 0.37, -5.0])
def test_self_critical_gradient_is_on_average_that_of_the_expected_reward(baseline):
    ids = every_sequence(3, 2)
    rewards = noise(len(ids), seed=3)
    logits = noise(2, 3, seed=4).requires_grad_()
    probability = log_probs_of(logits, ids).sum(-1).exp()
    expected = torch.autograd.grad(-(probability * rewards).sum(), logits)[0]
    loss = self_critical_loss(
        log_probs_of(logits, ids), rewards, baseline=torch.full((len(ids),), baseline), reduction="none"
    )
    average = torch.autograd.grad((probability.detach() * loss).sum(), logits)[0]
    torch.testing.assert_close(average, expected)


def test_leave_one_out_gradient_is_on_average_that_of_the_expected_reward():
    ids = every_sequence(3, 2)
    rewards = noise(len(ids), seed=3)
    logits = noise(2, 3, seed=4).requires_grad_()
    probability = log_probs_of(logits, ids).sum(-1).exp()
    expected = torch.autograd.grad(-(probability * rewards).sum(), logits)[0]
    triples = every_sequence(len(ids), 3)  # all ways to draw three samples
    weight = probability.detach()[triples].prod(-1)
    loss = self_critical_loss(log_probs_of(logits, ids[triples]), rewards[triples], reduction="none").mean(-1)
    average = torch.autograd.grad((weight * loss).sum(), logits)[0]
    torch.testing.assert_close(average, expected)


def test_minimum_risk_over_all_sequences_is_the_expected_risk():
    ids = every_sequence(3, 2)
    rewards = noise(len(ids), seed=3)
    logits = noise(2, 3, seed=4).requires_grad_()
    expected = 1 - (log_probs_of(logits, ids).sum(-1).exp() * rewards).sum()
    loss = minimum_risk_loss(log_probs_of(logits, ids)[None], rewards[None], alpha=1.0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))


@BOTH
def test_rewards_get_no_gradient(kind):
    log_probs, rewards, mask = sequences(2, 3, 4)
    log_probs.requires_grad_()
    rewards.requires_grad_()
    both_losses()[kind](log_probs, rewards * 2, mask).backward()
    assert rewards.grad is None
    assert log_probs.grad.abs().max() > 0


def test_the_baseline_gets_no_gradient():
    log_probs, rewards, mask = sequences(3, 4)
    log_probs.requires_grad_()
    baseline = rewards.clone().neg().requires_grad_()
    self_critical_loss(log_probs, rewards, mask, baseline * 2).backward()
    assert baseline.grad is None


# --- a policy learns


SLOTS = (("cat", "dog", "car", "idea"), ("sat", "slept", "drove", "rained"), ("mat", "rug", "road", "sky"))
REFERENCES = ("the cat sat on the mat", "the car drove along the road")
IDS = every_sequence(4, 3)


@pytest.fixture(scope="module")
def reward_table(encoder):
    """The true BERTScore of every text that the policy can say, shape (items, texts)."""
    texts = ["the {} {} on the {}".format(*(slot[i] for slot, i in zip(SLOTS, ids, strict=True))) for ids in IDS]
    reward = BERTScoreReward(encoder)
    return torch.tensor([reward(texts, [reference] * len(texts)) for reference in REFERENCES])


def expected_reward(logits, reward_table):
    """Of a policy (items, positions, vocabulary), over all texts."""
    table = logits.log_softmax(-1)
    probability = table[:, torch.arange(3), IDS].sum(-1).exp()
    return (probability * reward_table).sum(-1)


def repeats(ids):
    """Samples that an item has had before."""
    return torch.stack([(ids[:, :k] == ids[:, k : k + 1]).all(-1).any(-1) for k in range(ids.shape[1])], dim=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["greedy baseline", "leave-one-out", "minimum risk", "minimum risk, alpha 1"])
def test_a_policy_learns_to_say_what_has_a_high_bertscore(reward_table, way, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(2, 3, 4, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    before = expected_reward(logits, reward_table).detach()
    power = torch.tensor([16, 4, 1])
    for _ in range(60):
        draws = torch.multinomial(logits.detach().softmax(-1).flatten(0, 1), 8, replacement=True, generator=generator)
        ids = draws.view(2, 3, 8).mT  # (items, samples, positions)
        log_probs = logits.log_softmax(-1)[:, None].expand(2, 8, 3, 4).gather(-1, ids[..., None])[..., 0]
        rewards = reward_table.gather(1, (ids * power).sum(-1))
        if way == "greedy baseline":
            greedy = reward_table.gather(1, (logits.argmax(-1) * power).sum(-1, keepdim=True))[:, 0]
            loss = SelfCriticalLoss()(log_probs, rewards, baseline=greedy)
        elif way == "leave-one-out":
            loss = SelfCriticalLoss()(log_probs, rewards)
        else:
            fresh = ~repeats(ids)[..., None].expand_as(ids)
            risk = MinimumRiskLoss(1.0) if way.endswith("alpha 1") else MinimumRiskLoss()
            loss = risk(log_probs, rewards, fresh)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after, best = expected_reward(logits, reward_table).detach(), reward_table.amax(1)
    assert ((after - before) / (best - before) > 0.8).all()
