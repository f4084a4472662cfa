"""Losses and rewards on 2 and 3 ranks: gradients and values are those of one process with the whole batch."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.losses.sequence.test_sampling import batch_of, make_model
from tests.support.models import tiny_generator, tiny_model
from tests.support.oracle import oracle_scores
from tests.support.rank_tables import Case, Job, deal_in_turn, deal_none_to_the_last, every_case
from tests.support.risk import REFERENCES, RiskStep, make_risk
from tests.support.texts import real_pairs

pytestmark = pytest.mark.distributed

LAYERS = 2
# One row of labels per example. All have equally many, so that the mean over ranks is the mean over examples.
LABELS = torch.arange(50, 80).reshape(6, 5)
ROWS_IN_TURN = partial(deal_in_turn, range(len(LABELS)))
CANDIDATES, DOCUMENTS = real_pairs(7, words=8)


def mean_over_ranks(value: Tensor) -> Tensor:
    """Return the mean of a number over all ranks."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def whole_gradient(model: nn.Module) -> Tensor:
    """Return the gradient of all parameters, put together from their shards."""
    parts = []
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        if gradient is not None:
            parts.append(gradient.flatten())
    return torch.cat(parts)


# SoftBERTScoreLoss


def make_soft_loss() -> SoftBERTScoreLoss:
    return SoftBERTScoreLoss(FrozenEncoder(*tiny_model("bert"), num_layers=LAYERS))


def compute_soft_loss(loss: SoftBERTScoreLoss, model: nn.Module, labels: Tensor, from_hidden: bool) -> Tensor:
    """Return the loss from a generator's logits, or from its hidden states."""
    output = model(labels, output_hidden_states=True)
    if from_hidden:
        return loss.forward_hidden(output.hidden_states[-1], model.lm_head, labels)
    return loss(output.logits, labels)


def shard(model: nn.Module) -> nn.Module:
    """Shard a generator by layers."""
    for layer in model.transformer.h:
        fully_shard(layer)
    fully_shard(model)
    return model


def step_on_a_rank(job: Job, wrap: Any, from_hidden: bool = False) -> dict[str, Tensor]:
    """Return the value and the gradient of a rank's share of the labels."""
    loss = make_soft_loss()
    model = wrap(tiny_generator("gpt2", vocab_size=800))

    value = compute_soft_loss(loss, model, LABELS[job.batches], from_hidden)
    value.backward()

    backbone = loss.encoder.backbone(torch.device("cpu"))
    assert all(parameter.grad is None for parameter in backbone.parameters())
    return {"value": mean_over_ranks(value), "gradient": whole_gradient(model)}


def step_in_one_process(job: Job) -> dict[str, Tensor]:
    """Return the value and the gradient of all labels, without a wrapper."""
    model = tiny_generator("gpt2", vocab_size=800)
    value = compute_soft_loss(make_soft_loss(), model, LABELS, from_hidden=False)
    value.backward()
    return {"value": value.detach(), "gradient": whole_gradient(model)}


def soft_case(world_sizes: Sequence[int], **options: Any) -> Case:
    """Return the case of a SoftBERTScoreLoss with a wrapper around the generator."""
    return Case(
        compute=partial(step_on_a_rank, **options),
        deal=ROWS_IN_TURN,
        expect=step_in_one_process,
        world_sizes=world_sizes,
    )


# BERTScoreRisk


def make_inputs(job: Job, rank: int, number: int) -> tuple[dict[str, Tensor], list[Any]]:
    """Return the input of a rank in a step, and its reference, which the last rank lacks in the first step."""
    inputs = {name: value[rank : rank + 1] for name, value in batch_of("right").items()}
    is_without_reference = number == 0 and rank == job.world_size - 1
    if is_without_reference:
        return inputs, [None]
    return inputs, [REFERENCES[rank]]


def risk_steps_on_a_rank(job: Job, **options: Any) -> dict[str, Tensor]:
    """Return the gradients and the measured norms of steps in DDP, each with one input per rank."""
    step = RiskStep(make_risk(**options))
    wrapped = DistributedDataParallel(step)
    gradients, norms = [], []
    for number in job.batches:
        torch.manual_seed(number)
        wrapped.zero_grad()
        wrapped(*make_inputs(job, job.rank, number)).backward()
        gradients.append(whole_gradient(step.model))
        norms.append(step.risk.balance.norms.clone())
    return {"gradients": torch.stack(gradients), "norms": torch.stack(norms)}


def risk_step_alone(job: Job, rank: int, number: int, norms: Tensor) -> RiskStep:
    """Run a step of one rank without the others, with given norms; norms of 0 are measured."""
    step = RiskStep(make_risk())
    step.risk.balance.norms = norms
    step.risk.calls = 1
    torch.manual_seed(number)
    step(*make_inputs(job, rank, number)).backward()
    return step


def cross_entropy_alone(job: Job, rank: int, number: int) -> Tensor:
    """Return the gradient of one rank's step without the risk."""
    step = RiskStep(lambda *_: 0.0)
    step(*make_inputs(job, rank, number)).backward()
    return whole_gradient(step.model)


def expect_risk_steps(job: Job, every: int = 1) -> dict[str, Tensor]:
    """Measure each rank's norms alone, average them, and average the ranks' gradients with the common norms."""
    common = torch.zeros(2)
    gradients, norms = [], []
    for number in job.batches:
        is_sampled = number % every == 0
        if is_sampled:
            common = update_norms(job, number, common)
        of_ranks = []
        for rank in range(job.world_size):
            if is_sampled:
                of_ranks.append(whole_gradient(risk_step_alone(job, rank, number, common).model))
            else:
                of_ranks.append(cross_entropy_alone(job, rank, number))
        gradients.append(torch.stack(of_ranks).mean(dim=0))
        norms.append(common)
    return {"gradients": torch.stack(gradients), "norms": torch.stack(norms)}


def update_norms(job: Job, number: int, before: Tensor) -> Tensor:
    """Return the running mean of the norms after a step, in which ranks without a reference measure nothing."""
    measured = []
    for rank in range(job.world_size):
        norms = risk_step_alone(job, rank, number, torch.zeros(2)).risk.balance.norms
        if norms.min() > 0:
            measured.append(norms)
    mean = torch.stack(measured).mean(dim=0)
    if before.min() > 0:
        return 0.9 * before + 0.1 * mean
    return mean


def refuse_sharded_encoder_decoder(job: Job) -> bool:
    """Return whether the error for a sharded encoder-decoder names its class and the remedy's object."""
    model = make_model("t5")
    fully_shard(model)
    with pytest.raises(TypeError) as caught:
        make_risk()(model, batch_of("right"), REFERENCES)
    return "T5ForConditionalGeneration is sharded by fully_shard" in str(caught.value)


def train_sharded_decoder(job: Job) -> bool:
    """Return whether the risk of a sharded decoder has a finite gradient."""
    model = make_model("gpt2")
    fully_shard(model)
    make_risk()(model, batch_of("left"), REFERENCES).backward()
    return bool(whole_gradient(model).isfinite().all())


# BERTScoreReward


def reward_on_a_rank(job: Job) -> list[float]:
    """Return the rewards of a rank's own texts."""
    encoder = FrozenEncoder(job.resources.model, num_layers=LAYERS)
    reward = BERTScoreReward(encoder)
    return reward([CANDIDATES[i] for i in job.batches], [DOCUMENTS[i] for i in job.batches])


def expect_rewards(job: Job) -> list[float]:
    """Return the F1 of a rank's texts by bert-score."""
    if not job.batches:
        return []
    candidates = [CANDIDATES[i] for i in job.batches]
    documents = [DOCUMENTS[i] for i in job.batches]
    return oracle_scores(job.resources.model, candidates, documents, LAYERS)[2].tolist()


def same_steps(count: int, world_size: int) -> list[list[int]]:
    """Deal the numbers of all steps to each rank."""
    return [list(range(count)) for _ in range(world_size)]


# The first measurement, and one that joins the running mean.
TWO_STEPS = partial(same_steps, 2)
STEPS = partial(same_steps, 3)
TABLE = {
    "soft loss in DDP": soft_case((2, 3), wrap=DistributedDataParallel),
    "soft loss, sharded": soft_case((2,), wrap=shard),
    "soft loss, sharded, from hidden states": soft_case((3,), wrap=shard, from_hidden=True),
    "risk in DDP, measured in each step": Case(
        compute=partial(risk_steps_on_a_rank, balance_every=1), deal=TWO_STEPS, expect=expect_risk_steps, tolerance=1e-5
    ),
    "risk in DDP, in every second step": Case(
        compute=partial(risk_steps_on_a_rank, balance_every=1, every=2),
        deal=STEPS,
        expect=partial(expect_risk_steps, every=2),
        world_sizes=(2,),
        tolerance=1e-5,
    ),
    "risk of a sharded encoder-decoder is refused": Case(
        compute=refuse_sharded_encoder_decoder,
        deal=STEPS,
        expect=lambda job: True,
        world_sizes=(2,),
    ),
    "risk of a sharded decoder": Case(
        compute=train_sharded_decoder, deal=STEPS, expect=lambda job: True, world_sizes=(2,)
    ),
    "rewards": Case(
        compute=reward_on_a_rank,
        deal=partial(deal_none_to_the_last, range(len(CANDIDATES))),
        expect=expect_rewards,
        differs_by_rank=True,
        world_sizes=(3,),
        tolerance=2e-6,
    ),
}


@every_case(TABLE)
def test_each_rank_has_the_values_of_one_process(ran, name):
    ran.check(name)
