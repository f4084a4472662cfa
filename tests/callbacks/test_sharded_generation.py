"""Generators of models that are sharded: all ranks gather the shards equally often."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.distributed.tensor import DTensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate, Seq2SeqGenerate
from tests.support.callback_ranks import on_ranks, results
from tests.support.callback_runs import ANSWERS, LAYER, Writer, batch_of, logged, means, strategy_on_cpu
from tests.support.lightning_modules import trainer

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    # Random models write random tokens.
    pytest.mark.filterwarnings("ignore:.*candidates? scored 0"),
]

SHARDINGS = {
    "blocks": {},
    "whole": {"by_blocks": False},
    "resharded": {"reshard_after_forward": True},
    "parts": {"whole": False},
    "fsdp": {"fully": False},
}
OPTIONS = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 3, "do_sample": False},
    "sampled": {"do_sample": True},
}


# Each family, each sharding and each option, those of FSDP with a family of each kind.
GENERATIONS = [
    ("gpt2", "blocks", "greedy"),
    ("gpt2", "fsdp", "greedy"),
    ("bart", "blocks", "greedy"),
    ("bart", "fsdp", "greedy"),
    ("llama", "fsdp", "greedy"),
    ("t5", "blocks", "greedy"),
    ("bart", "whole", "greedy"),
    ("gpt2", "resharded", "greedy"),
    ("bart", "parts", "greedy"),
    ("bart", "fsdp", "beams"),
    ("gpt2", "blocks", "sampled"),
]
TRAINERS = ["fully_shard", "fsdp"]


def ready_generate(tokenizer, family, rank, **options):
    """A generator of texts that end after 2 tokens on the first rank, and after 7 on the second."""
    is_causal = family not in ("bart", "t5")
    kind = partial(CausalGenerate, prompt_key="input_ids") if is_causal else Seq2SeqGenerate
    return kind(tokenizer, max_new_tokens=2 + 5 * rank, **options)


def written_by(module, rank, family, options):
    torch.manual_seed(5 + rank)
    with torch.no_grad():
        return ready_generate(module.tokenizer, family, rank, **options)(
            module, batch_of(module.tokenizer, slice(2 * rank, 2 * rank + 2))
        )


def written(rank, family, sharding, option):
    module = Writer(family)
    plain = written_by(deepcopy(module), rank, family, OPTIONS[option])
    forwards = []
    module.model.register_forward_hook(lambda *args: forwards.append(rank))
    module.shard(**SHARDINGS[sharding])
    texts = [written_by(module, rank, family, OPTIONS[option]) for _ in range(2)]
    count = len(forwards)
    module.training_step(batch_of(module.tokenizer), 0).backward()
    gradient = [p.grad.full_tensor() if isinstance(p, DTensor) else p.grad for p in module.parameters()]
    return plain, texts, torch.cat([part.flatten() for part in gradient]), count


def validated(rank, minilm, folder, strategy):
    """The texts that a rank writes in the validation of a sharded model, and the scores."""
    module, written = Writer("bart"), []
    make = ready_generate(module.tokenizer, "bart", rank, do_sample=False)

    def remember(pl_module, batch):
        preds, target = make(pl_module, batch)
        written.extend(preds)
        return preds, target

    scorer = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=LAYER)), remember)
    chosen = strategy_on_cpu(strategy, {type(block) for block in module.blocks})
    run = trainer(folder, [scorer], devices=2, strategy=chosen)
    run.validate(module, verbose=False)
    return written, logged(run.callback_metrics)


def generations(rank):
    for family, sharding, option in GENERATIONS:

        def run(family=family, sharding=sharding, option=option):
            return written(rank, family, sharding, option)

        yield (family, sharding, option), run


def gradient_of_whole(family):
    module = Writer(family)
    module.training_step(batch_of(module.tokenizer), 0).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def test_sharded_models_generate_the_texts_of_whole_ones_and_train_after_it():
    reports = on_ranks(generations)
    for family, sharding, option in GENERATIONS:
        ranks = results(reports, (family, sharding, option))
        for plain, sharded, _, _ in ranks:
            assert sharded == [plain] * 2, (family, sharding, option)
        assert len({text for plain, *_ in ranks for text in plain[0]}) > 1
        # Shards are gathered in each pass, so that a rank which makes fewer of them leaves the other waiting.
        counts = [count for *_, count in ranks]
        assert counts == [2 * 7] * 2, (family, sharding, option)
        if option == "greedy":
            expected = gradient_of_whole(family)
            gradients = [gradient for _, _, gradient, _ in ranks]
            if sharding == "fsdp":  # each rank has one half, possibly padded at the end
                gradients = [torch.cat(gradients)[: len(expected)]] * 2
            for gradient in gradients:
                torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-3)


def validations(rank, minilm, folder):
    for strategy in TRAINERS:
        yield strategy, lambda strategy=strategy: validated(rank, minilm, folder, strategy)


def test_the_trainer_shards_a_model_that_generates(minilm, shallow, tmp_path):
    """Before any other forward pass, as in ``trainer.validate``."""
    reports = on_ranks(validations, minilm, tmp_path)
    plain = Writer("bart")
    # Examples 0 and 2 are the first rank's, and 1 and 3 the second's.
    expected = []
    for rank in (0, 1):
        make = ready_generate(plain.tokenizer, "bart", rank, do_sample=False)
        with torch.no_grad():
            expected.append([make(plain, batch_of(plain.tokenizer, slice(i, i + 1)))[0][0] for i in (rank, rank + 2)])
    _, targets = ready_generate(plain.tokenizer, "bart", 0)(plain, batch_of(plain.tokenizer))
    assert len(targets) == len(ANSWERS)
    scores = means([expected[i % 2][i // 2] for i in range(4)], targets, shallow)
    for strategy in TRAINERS:
        ranks = results(reports, strategy)
        assert [preds for preds, _ in ranks] == expected, strategy
        for _, metrics in ranks:
            assert metrics == pytest.approx(scores, abs=1e-6), strategy
