"""Generators of models that are sharded: all ranks gather the shards equally often."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback, CausalGenerate, Seq2SeqGenerate
from tests.support.lightning_runs import LAYER, WithModel, gathered, generator, logged, means, strategy_on_cpu, trainer
from tests.support.models import padded
from tests.support.ranks import on_ranks, results

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    # Random models write random tokens.
    pytest.mark.filterwarnings("ignore:.*candidates? scored 0"),
]

PROMPTS = ["sum the list", "open a file and read its lines", "close it", "return a new string from both"]
ANSWERS = ["a cat sat", "it rains today", "hello", "returns a list of names"]
BLOCKS = {"BartEncoderLayer", "BartDecoderLayer", "GPT2Block", "LlamaDecoderLayer", "T5Block"}
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


class Writer(WithModel):
    """Trains a tiny Hugging Face model; its validation step makes no forward pass."""

    def __init__(self, family):
        model, self.tokenizer = generator(family)
        super().__init__(model)

    @property
    def blocks(self):
        return [part for part in self.model.modules() if type(part).__name__ in BLOCKS]

    def shard(self, *, fully=True, by_blocks=True, whole=True, **options):
        """Shard with ``fully_shard`` the blocks, the remaining modules, or both; or the model with the older FSDP."""
        if not fully:
            self.model = FullyShardedDataParallel(self.model, device_id=torch.device("cpu"))
            return
        for part in [*(self.blocks if by_blocks else ()), *([self.model] if whole else ())]:
            fully_shard(part, **options)

    def configure_model(self):
        if self.device_mesh is not None and not any(isinstance(p, DTensor) for p in self.parameters()):
            self.shard(mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        labels = batch["labels"] if self.model.config.is_encoder_decoder else batch["input_ids"]
        return self.model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def val_dataloader(self):
        whole = batch_of(self.tokenizer)
        return DataLoader([{key: rows[i] for key, rows in whole.items()} for i in range(len(PROMPTS))], batch_size=1)


def batch_of(tokenizer, chosen=slice(None)):
    """Return padded prompts and answers."""
    ids = tokenizer(PROMPTS)["input_ids"]
    batch = {
        "input_ids": padded(ids, 3),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "labels": padded(tokenizer(ANSWERS, add_special_tokens=False)["input_ids"]),
    }
    return {key: rows[chosen] for key, rows in batch.items()}


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
    gradient = [gathered(parameter.grad).flatten() for parameter in module.parameters()]
    return plain, texts, torch.cat(gradient), count


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
