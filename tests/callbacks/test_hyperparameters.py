"""Encoders, metrics and losses among a module's hyperparameters: checkpoints stay loadable."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.callbacks.hyperparameters import drop_saved_objects
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.lightning_runs import trainer

DATA = DataLoader(torch.ones(4, 2), batch_size=2)


class Module(pl.LightningModule):
    def __init__(self, encoder, metric, loss, lr, ignore=()):
        super().__init__()
        self.save_hyperparameters(ignore=[*ignore, "ignore"])
        self.encoder, self.metric, self.loss = encoder, metric, loss
        self.net = torch.nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()

    def validation_step(self, batch, batch_idx):
        return {"preds": ["a cat"] * len(batch), "target": ["a dog"] * len(batch)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


@pytest.fixture
def objects(encoder):
    return {"encoder": encoder, "metric": BERTScore(encoder), "loss": SoftBERTScoreLoss(encoder)}


def trainer_of(folder, encoder, max_epochs=1, **options):
    checkpoint = ModelCheckpoint(folder, save_last=True, **options)
    return trainer(folder, [checkpoint, BERTScoreCallback(BERTScore(encoder))], max_epochs=max_epochs)


# Lightning warns about modules among the hyperparameters, too.
@pytest.mark.filterwarnings("ignore:Attribute .* is an instance of `nn.Module`")
def test_objects_are_left_out_of_checkpoints_with_a_warning(tmp_path, encoder, objects):
    module = Module(**objects, lr=0.1)
    run = trainer_of(tmp_path, encoder)
    said = r"hyperparameters.*ignore=\['encoder', 'metric', 'loss'\]\) in the LightningModule.*load_from_checkpoint"

    with pytest.warns(UserWarning, match=said):
        run.fit(module, DATA, DATA)

    path = run.checkpoint_callback.last_model_path
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"lr": 0.1}
    assert module.hparams.encoder is encoder

    # The objects are passed again where a module is loaded.
    loaded = Module.load_from_checkpoint(path, **objects)
    assert torch.equal(loaded.net.weight, module.net.weight)
    assert loaded.hparams.lr == 0.1
    assert loaded.metric is objects["metric"]

    # A training goes on from the checkpoint.
    resumed = trainer_of(tmp_path / "more", encoder, max_epochs=2)
    with pytest.warns(UserWarning, match=said):
        resumed.fit(module, DATA, DATA, ckpt_path=path)
    assert resumed.global_step == 2 * run.global_step
    run.validate(module, DATA, ckpt_path="last", verbose=False)


# Lightning advises what the test does next.
@pytest.mark.filterwarnings("ignore:Attribute '.*' is an instance of `nn.Module`")
def test_ignored_objects_need_no_warning(tmp_path, encoder, objects):
    run = trainer_of(tmp_path, encoder, save_weights_only=True)
    with warnings.catch_warnings(record=True, action="always") as caught:
        run.fit(Module(**objects, lr=0.1, ignore=list(objects)), DATA, DATA)

    assert not [w for w in caught if "hyperparameters" in str(w.message)]
    assert Module.load_from_checkpoint(run.checkpoint_callback.last_model_path, **objects).hparams.lr == 0.1


@pytest.mark.parametrize("owner", [pl.LightningModule, pl.LightningDataModule])
@pytest.mark.parametrize("nest", [lambda loss: {"a": (1, [loss])}, lambda loss: torch.nn.ModuleDict({"a": loss})])
def test_nested_objects_and_those_of_a_data_module_are_left_out(objects, nest, owner):
    checkpoint = {owner.CHECKPOINT_HYPER_PARAMS_KEY: {"encoder": None, "loss": nest(objects["loss"]), "lr": 0.1}}

    with pytest.warns(UserWarning, match=rf"ignore=\['loss'\]\) in the {owner.__name__}"):
        drop_saved_objects(checkpoint)
    assert checkpoint == {owner.CHECKPOINT_HYPER_PARAMS_KEY: {"encoder": None, "lr": 0.1}}
