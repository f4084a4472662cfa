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
GREEDY, BEAMS, SAMPLED = {"do_sample": False}, {"num_beams": 3, "do_sample": False}, {"do_sample": True}
FSDP = {"fully": False}
# Each family, each sharding and each option, those of FSDP with a family of each kind.
GENERATIONS = [
    ("gpt2", {}, GREEDY),
    ("gpt2", FSDP, GREEDY),
    ("bart", {}, GREEDY),
    ("bart", FSDP, GREEDY),
    ("llama", FSDP, GREEDY),
    ("t5", {}, GREEDY),
    ("bart", {"by_blocks": False}, GREEDY),
    ("gpt2", {"reshard_after_forward": True}, GREEDY),
    ("bart", {"whole": False}, GREEDY),
    ("bart", FSDP, BEAMS),
    ("gpt2", {}, SAMPLED),
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


def make_generate(module, rank, **options):
    """A generator of texts that end after 2 tokens on the first rank, and after 7 on the second."""
    is_causal = not module.model.config.is_encoder_decoder
    kind = partial(CausalGenerate, prompt_key="input_ids") if is_causal else Seq2SeqGenerate
    return kind(module.tokenizer, max_new_tokens=2 + 5 * rank, **options)


@torch.no_grad()
def write(module, rank, rows, **options):
    torch.manual_seed(5 + rank)
    return make_generate(module, rank, **options)(module, batch_of(module.tokenizer, rows))[0]


def gradient_of(module):
    module.training_step(batch_of(module.tokenizer), 0).backward()
    return torch.cat([gathered(parameter.grad).flatten() for parameter in module.parameters()])


def written(rank, family, sharding, options):
    """The texts of a sharded model, those of the whole one, its forward passes, and the gradients after it."""
    module = Writer(family)
    rows = slice(2 * rank, 2 * rank + 2)
    forwards = []
    whole = deepcopy(module)
    module.model.register_forward_hook(lambda *args: forwards.append(rank))
    module.shard(**sharding)
    texts = [write(module, rank, rows, **options) for _ in range(2)]
    count = len(forwards)
    assert "generate" not in vars(module.model)  # as before
    return texts, write(whole, rank, rows, **options), count, gradient_of(module), gradient_of(whole)


def validated(rank, minilm, folder, strategy):
    """The texts that a rank writes in the validation of a sharded model, and the scores."""
    module = Writer("bart")
    written = []
    make = make_generate(module, rank, **GREEDY)

    def remember(pl_module, batch):
        preds, target = make(pl_module, batch)
        written.extend(preds)
        return preds, target

    scorer = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=LAYER)), remember)
    chosen = strategy_on_cpu(strategy, {type(block) for block in module.blocks})
    run = trainer(folder, [scorer], devices=2, strategy=chosen)
    run.validate(module, verbose=False)
    return written, logged(run.callback_metrics)


def cases(rank, minilm, folder):
    for number, case in enumerate(GENERATIONS):
        yield number, partial(written, rank, *case)
    for strategy in TRAINERS:
        yield strategy, partial(validated, rank, minilm, folder, strategy)


@pytest.fixture(scope="module")
def reports(minilm, tmp_path_factory):
    return on_ranks(cases, minilm, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("number", range(len(GENERATIONS)), ids=[str(case) for case in GENERATIONS])
def test_sharded_models_generate_the_texts_of_whole_ones(reports, number):
    ranks = results(reports, number)

    for texts, expected, count, _, _ in ranks:
        assert texts == [expected] * 2
        # Shards are gathered in each pass, so that a rank which makes fewer of them leaves the other waiting.
        assert count == 2 * 7
    distinct = {text for _, expected, *_ in ranks for text in expected}
    assert len(distinct) > 1
    expected = ranks[0][-1]
    gradients = [gradient for *_, gradient, _ in ranks]
    if GENERATIONS[number][1] is FSDP:  # each rank has one half, possibly padded at the end
        gradients = [torch.cat(gradients)[: len(expected)]]
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-3)


def test_the_trainer_shards_a_model_that_generates(reports, shallow):
    """Before any other forward pass, as in ``trainer.validate``."""
    plain = Writer("bart")
    # Examples 0 and 2 are the first rank's, and 1 and 3 the second's.
    expected = [[write(plain, rank, slice(i, i + 1), **GREEDY)[0] for i in (rank, rank + 2)] for rank in (0, 1)]
    target = plain.tokenizer.batch_decode(plain.tokenizer(ANSWERS)["input_ids"], skip_special_tokens=True)
    scores = means([expected[i % 2][i // 2] for i in range(4)], target, shallow)

    for strategy in TRAINERS:
        ranks = results(reports, strategy)
        assert [preds for preds, _ in ranks] == expected, strategy
        for _, metrics in ranks:
            assert metrics == pytest.approx(scores, abs=1e-6), strategy
