"""Metric, loss and callback in one LightningModule, of any precision, sharded or not.

The encoder stays whole and in float32, training and checkpoints never see it, and the score is the same.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import AutoModel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.functional import SCORE_NAMES, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.lightning_runs import strategy_on_cpu, trainer
from tests.support.models import save_tiny_model
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs

LAYERS = 2
# Odd, so that two processes get one example twice.
COUNT = 5
# The first loads the encoder within its context.
PRECISIONS = ("bf16-true", "bf16-mixed", "32-true")
OWN = {"generator.0.weight", "generator.1.weight", "generator.1.bias"}


class Training(pl.LightningModule):
    """Trains a generator of one token after another, which it shards where the strategy has a mesh.

    A loss and two metrics are on one encoder; the metrics score the texts after each epoch.
    """

    def __init__(self, model: str, pairs: tuple[list[str], list[str]]) -> None:
        super().__init__()
        self.pairs = pairs
        self.losses: list[float] = []
        self.encoder = FrozenEncoder(model, num_layers=LAYERS)
        self.metrics = nn.ModuleDict({"plain": BERTScore(self.encoder), "idf": BERTScore(self.encoder, idf=True)})
        self.loss_fn = SoftBERTScoreLoss(self.encoder)
        vocabulary = self.encoder.config.vocab_size
        self.generator = nn.Sequential(nn.Embedding(vocabulary, 2), nn.Linear(2, vocabulary))

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            for module in (self.generator[1], self.generator):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])

    def forward(self, numbers: Sequence[int]) -> Tensor:
        rows = [row[:8] for row in self.encoder.tokenizer([self.pairs[1][i] for i in numbers]).rows()]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return self.loss_fn(self.generator(ids), ids)

    def training_step(self, batch: list[int], batch_idx: int) -> Tensor:
        loss = self(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[int], batch_idx: int) -> dict[str, list[str]]:
        # Within the precision's context.
        self.log("val_loss", self(batch), batch_size=len(batch), sync_dist=True)
        preds, target = ([side[i] for i in batch] for side in self.pairs)
        for metric in self.metrics.values():
            metric.update(preds, target, indices=batch)
        return {"preds": preds, "target": target}

    def on_validation_epoch_end(self) -> None:
        for kind, metric in self.metrics.items():
            self.log_dict({f"{kind}_{name}": score for name, score in metric.compute().items()}, sync_dist=True)
            metric.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # Smaller steps would be lost in rounding the weights to bfloat16.
        return torch.optim.SGD(self.parameters(), lr=100.0)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(list(range(COUNT)), batch_size=2, collate_fn=list)

    val_dataloader = train_dataloader


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> str:
    """Folder of a tiny encoder: with the vocabulary of a real one, most of the time would be the loss's."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("model"))


def copy_weights(module: Training) -> dict[str, Tensor]:
    """Copies of the generator's weights, put together from their shards."""
    weights = {}
    for name, value in module.named_parameters():
        whole = value.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        weights[name] = whole.clone()
    return weights


def assert_encoder_untouched(module: Training, model: str) -> None:
    """The encoder's weights are those of the file, and nothing that trains, shards or saves the module knows them."""
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()} == OWN
    saved = AutoModel.from_pretrained(model, dtype=torch.float32).state_dict()
    held = dict(module.encoder.backbone(torch.device("cpu")).named_parameters())
    assert len(held) > 16 * LAYERS
    for name, value in held.items():
        assert type(value) is nn.Parameter
        assert value.dtype == torch.float32
        assert not value.requires_grad
        assert value.grad is None
        assert torch.equal(value, saved[name])


def expect_scores(model: str, pairs: tuple[list[str], list[str]]) -> dict[str, float]:
    """Return the means of the function's scores, by the keys of the module's and the callback's metrics."""
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    plain = bert_score(*pairs, encoder)
    weighted = bert_score(*pairs, encoder, idf=True)

    expected = {"val_bertscore_empty": 0.0}
    for name in SCORE_NAMES:
        expected[f"plain_{name}"] = plain[name].mean().item()
        expected[f"val_bertscore_{name}"] = plain[name].mean().item()
        expected[f"idf_{name}"] = weighted[name].mean().item()
    return expected


def fit(folder: Path, model: str, pairs: tuple[list[str], list[str]], **options: Any) -> dict[str, Any]:
    """Train for an epoch and return the scores, the precision of the weights, and the losses."""
    pl.seed_everything(0, verbose=False)
    module = Training(model, pairs)
    before = copy_weights(module)
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(model, num_layers=LAYERS)))
    run = trainer(folder, callbacks=[callback], max_epochs=1, **options)
    run.fit(module)

    after = copy_weights(module)
    for name in OWN:
        assert not torch.equal(after[name], before[name].to(after[name].dtype))
    assert_encoder_untouched(module, model)
    scores = {key: value.item() for key, value in run.callback_metrics.items() if "loss" not in key}
    return {
        "scores": scores,
        "dtype": next(module.parameters()).dtype,
        "sharded": isinstance(module.generator, FSDPModule),
        "losses": module.losses,
    }


def assert_same_scores(runs: dict[str, dict[str, Any]], expected: dict[str, float]) -> None:
    """Precisions took effect in the generator and its loss, and none in the scores."""
    assert set(runs) == set(PRECISIONS)
    exact = runs["32-true"]
    for precision, result in runs.items():
        assert result["dtype"] == (torch.bfloat16 if precision == "bf16-true" else torch.float32)
        assert result["scores"] == pytest.approx(expected, abs=1e-6)
        assert (result["losses"] == exact["losses"]) == (precision == "32-true")
        assert result["losses"] == pytest.approx(exact["losses"], abs=0.01)


def test_precision_in_one_process(tiny_folder, tmp_path):
    pairs = real_pairs(COUNT, words=8)

    runs = {}
    for precision in PRECISIONS:
        runs[precision] = fit(tmp_path, tiny_folder, pairs, precision=precision)

    assert_same_scores(runs, expect_scores(tiny_folder, pairs))


def test_checkpoints_and_optimizers_never_see_the_encoder(minilm, tmp_path):
    pairs = real_pairs(COUNT, words=8)
    module = Training(minilm, pairs)
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(minilm, num_layers=LAYERS)))
    run = trainer(tmp_path, callbacks=[callback], max_epochs=1)

    # Validation comes first, in inference mode: the loss must still be able to train with the same encoder.
    run.validate(module, verbose=False)
    run.fit(module)
    run.save_checkpoint(tmp_path / "last.ckpt")

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    num_bytes = sum(value.numel() * value.element_size() for value in module.parameters())
    assert set(saved["state_dict"]) == OWN
    assert (tmp_path / "last.ckpt").stat().st_size < num_bytes + 20_000
    (group,) = run.optimizers[0].param_groups
    assert list(map(id, group["params"])) == list(map(id, module.parameters()))
    Training(minilm, pairs).load_state_dict(saved["state_dict"])


STRATEGIES = ("ddp", "fully_shard")


def fit_everything(rank: int, folder: Path, model: str, pairs: tuple[list[str], list[str]]) -> dict[str, Any]:
    """Train with each strategy and precision on a rank, and return the results by strategy and precision."""
    runs: dict[str, dict[str, Any]] = {name: {} for name in STRATEGIES}
    for name, precision in product(STRATEGIES, PRECISIONS):
        strategy = strategy_on_cpu(name)
        runs[name][precision] = fit(folder, model, pairs, precision=precision, strategy=strategy, devices=2)
    return runs


@pytest.mark.slow
@pytest.mark.distributed
def test_precision_in_two_processes(tiny_folder, tmp_path):
    pairs = real_pairs(COUNT, words=8)

    results = run_ranks(fit_everything, 2, tmp_path, tiny_folder, pairs)

    expected = expect_scores(tiny_folder, pairs)
    for of_rank in results:
        for name, runs in of_rank.items():
            assert_same_scores(runs, expected)
            for run in runs.values():
                assert run["sharded"] == (name == "fully_shard")
                assert len(run["losses"]) == 2
