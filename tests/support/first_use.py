"""The first use of the installed package in a new interpreter: prints what it imported and asked the network.

``python -P first_use.py MODEL MODULE ...`` imports the modules, and scores texts in the working directory, which has a
file ``texts``, with the model of a folder.
"""

import importlib
import json
import socket
import sys
import warnings
from typing import Any

HEAVY = {"lightning", "pytorch_lightning", "pandas", "bert_score", "matplotlib"}
attempts: list[list[str]] = []


def refuse_network(event: str, args: tuple[Any, ...]) -> None:
    """Refuse, as an audit hook, everything that reaches other machines."""
    is_local = False
    if event == "socket.connect":
        is_local = args[0].family == socket.AF_UNIX
    elif event == "socket.__new__":
        is_local = args[1] == socket.AF_UNIX
    elif event not in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        return
    if not is_local:
        attempts.append([event, repr(args)])
        raise RuntimeError("no network in this test")


def import_package(modules: list[str]) -> dict[str, list[str]]:
    """Import the package step by step, and return the heavy modules that came with each step."""
    # transformers imports scikit-learn, and so pandas, in some versions.
    from transformers import AutoModel  # noqa: F401

    others = {*sys.modules}
    with warnings.catch_warnings(action="error"):
        importlib.import_module("bertscore_tm")
    from bertscore_tm import FrozenEncoder, bert_score  # noqa: F401

    scoring = HEAVY & {*sys.modules} - others
    with warnings.catch_warnings(action="error", category=UserWarning):
        from bertscore_tm import BERTScore  # noqa: F401

        importlib.import_module("bertscore_tm.losses")

        metric = HEAVY & {*sys.modules} - others
        for name in modules:
            importlib.import_module(name)
    # torchmetrics itself imports matplotlib where it is installed.
    return {"scoring": sorted(scoring), "metric": sorted(metric - {"matplotlib"})}


def score(model: str) -> None:
    """Score texts with the metric, the loss and the command, and read the packaged tables."""
    import torch

    from bertscore_tm import BERTScore, FrozenEncoder, catalog
    from bertscore_tm.cli import main
    from bertscore_tm.losses import SoftBERTScoreLoss

    torch.set_num_threads(1)
    metric = BERTScore(FrozenEncoder(model, num_layers=1))
    metric.update(["a cat"], ["the cat"])
    f1 = metric.compute()["f1"].item()
    loss = SoftBERTScoreLoss(metric.encoder, model)
    logits = torch.zeros(1, 4, 30522, requires_grad=True)
    loss(logits, ["a cat"]).backward()
    assert 0 < f1 < 1
    assert logits.grad.abs().sum() > 0
    assert catalog.baseline("en", "roberta-large").shape == (25, 3)
    assert catalog.tuned_layer("roberta-large") == 17
    settings = ["--model", model, "--num-layers", "1"]
    for command in (
        ["score", "-c", "texts", "-r", "texts", "--output", "scores.json", *settings],
        ["show", "a cat", "the cat", "--output", "page.html", *settings],
        ["baseline", "texts", "--pairs", "4", "--output", "table.csv", *settings],
    ):
        assert main(command) == 0, command


def ask_hub() -> str:
    """Return the error of a model that is not there."""
    from bertscore_tm import FrozenEncoder

    try:
        FrozenEncoder("nobody/no-such-model", num_layers=1)
    except Exception as error:  # noqa: BLE001 - what it is, is the result
        return repr(error)
    return ""


def run(model: str, modules: list[str]) -> None:
    """Use the package, and print a report as JSON."""
    sys.addaudithook(refuse_network)
    report: dict[str, Any] = {"heavy": import_package(modules)}
    from bertscore_tm.losses import SoftBERTScoreLoss

    report["package"] = sys.modules["bertscore_tm"].__file__
    report["loss"] = SoftBERTScoreLoss.__module__
    print("imported", file=sys.stderr, flush=True)
    score(model)
    report["unrequested"] = list(attempts)
    report["error"] = ask_hub()
    report["requested"] = attempts[len(report["unrequested"]) :]
    print(json.dumps(report))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
