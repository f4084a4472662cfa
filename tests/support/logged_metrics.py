"""A module that logs metric objects and leaves computing and resetting to Lightning."""

import lightning.pytorch as pl
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from tests.support.lightning_runs import loader
from tests.support.metrics import Kind, Workshop

# Kinds of metrics that return one number, by the names under which they are logged.
LOGGED = {
    "f1": Kind(component="f1"),
    "recall_idf": Kind(component="recall", idf=True),
    "layer3": Kind(layer=3, picked_from=3, component="f1"),
    "precision_idf": Kind(component="precision", idf=True),
}
# An odd number of examples, so that the sampler gives one of them to both processes.
VALIDATED = 7


class Logging(pl.LightningModule):
    """Logs ``val_f1`` at each step and at the end of the epoch, and a collection at the end of the epoch."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__()
        self.texts = workshop.preds, workshop.target
        metrics = {name: workshop.metric(made) for name, made in LOGGED.items()}
        self.f1 = metrics.pop("f1")
        self.collection = MetricCollection(metrics, prefix="val_")

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        preds, target = ([side[i] for i in batch.tolist()] for side in self.texts)
        self.f1(preds, target, indices=batch)
        self.log("val_f1", self.f1, on_step=True, on_epoch=True)
        self.collection.update(preds, target, indices=batch)
        self.log_dict(self.collection)

    def val_dataloader(self) -> DataLoader[int]:
        return loader(VALIDATED)


def key_at_end_of_epoch(name: str) -> str:
    """Return the key of a metric among the trainer's metrics."""
    if name == "f1":
        return "val_f1_epoch"
    return f"val_{name}"
