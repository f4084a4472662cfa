"""Checks and timings on GPUs: against the CPU, and next to bert-score, torchmetrics and cross-entropy alone.

    python -m examples.research.benchmarks.gpu [--json FILE]

Scores, losses and gradients in each precision; packed and padded texts; recovery when memory runs out; deterministic
mode; TF32; memory left behind; kernels and waits per call; times; throughput. A check that fails or raises is reported,
and the others go on; the exit status is then 1. Without a GPU, every line runs on the CPU with few texts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from bert_score.utils import bert_cos_score_idf
from torch import Tensor
from torchmetrics.text import BERTScore as PeerBERTScore
from transformers import AutoModel, AutoTokenizer, BertConfig, MistralConfig, ModernBertConfig

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.encoder.families import PACKED, PADDED
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from examples.programs.docstrings import collect_pairs, quieten
from examples.research.benchmarks.package import LAYER, MODEL

# Largest difference of F1 from the CPU's in float32, by the encoder's precision.
LIMITS = {"float32": 1e-4, "bfloat16": 0.03, "float16": 5e-3}
Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Bench:
    """What the checks share: a device, pairs to compare and pairs to time, and MiniLM's tokenizer."""

    device: torch.device
    pairs: Pairs
    many: Pairs
    tokenizer: Any

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def encoder(self, dtype: str = "float32", layer: int = LAYER) -> FrozenEncoder:
        """Return MiniLM on the device."""
        return FrozenEncoder(MODEL, num_layers=layer, dtype=dtype, device=self.device)

    def random_model(self, config_class: Any = BertConfig, **options: Any) -> Any:
        """Return a model of MiniLM's vocabulary with random weights."""
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64} | options
        return AutoModel.from_config(config_class(vocab_size=len(self.tokenizer), **sizes)).eval()

    def large(self, dtype: str) -> FrozenEncoder:
        """Return a random model in the shape of roberta-large up to layer 17, or smaller."""
        shape = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096} if self.on_gpu else {}
        layers = 17 if self.on_gpu else 2
        model = self.random_model(num_hidden_layers=layers, **shape)
        return FrozenEncoder(model, self.tokenizer, num_layers=layers, dtype=dtype, device=self.device)

    def allocated(self) -> int:
        """Return the bytes in use on the device."""
        gc.collect()
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else 0

    def best(self, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """Return the best time of each call in seconds, of alternating rounds after one to warm up."""
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for name, call in [*calls.items()] * (4 if self.on_gpu else 2):
            self.synchronize()
            began = time.perf_counter()
            call()
            self.synchronize()
            seconds[name].append(time.perf_counter() - began)
        return {name: round(min(times[1:]), 5) for name, times in seconds.items()}

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def count(self, call: Callable[[], Any]) -> dict[str, int]:
        """Return how many kernels a call launches, and how often it waits for the device."""
        call()
        self.synchronize()
        with warnings.catch_warnings(record=True, action="always") as caught:
            if self.on_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            call()
            if self.on_gpu:
                torch.cuda.set_sync_debug_mode("default")
        with torch.profiler.profile() as profile:
            call()
            self.synchronize()
        kernels = sum(event.count for event in profile.key_averages() if "LaunchKernel" in event.key)
        return {"kernels": kernels, "waits": sum("synchroniz" in str(warning.message) for warning in caught)}


def difference(first: Any, second: Any) -> float:
    """Return the largest difference of scores, of tensors or in dictionaries; NaN if there is one."""
    if isinstance(first, dict):
        return max(difference(first[name], second[name]) for name in first)
    return float((first.float().cpu() - second.float().cpu()).abs().max())


def check_scores(bench: Bench) -> Iterator[tuple[str, Any, float]]:
    """Compare the scores of MiniLM, and of models with other attention, with the CPU's."""
    expected = bert_score(*bench.pairs, FrozenEncoder(MODEL, num_layers=LAYER, device="cpu"))
    for dtype, limit in LIMITS.items():
        encoder = bench.encoder(dtype)
        yield f"MiniLM, {dtype}", difference(bert_score(*bench.pairs, encoder), expected), limit
        loaded, packed = encoder._backbone.loaded(bench.device), encoder.encode(bench.pairs[0], bench.device).vectors
        yield f"MiniLM, {dtype}: is packed", float(loaded.batching != PACKED), 0
        loaded.batching = PADDED
        padded = encoder.encode(bench.pairs[0], bench.device).vectors
        loaded.batching = PACKED
        yield f"MiniLM, {dtype}: packed and padded", difference(packed, padded), 4 * limit
    kinds = {
        "grouped heads": (MistralConfig, {"num_key_value_heads": 2, "sliding_window": None}),
        "window": (MistralConfig, {"num_key_value_heads": 2, "sliding_window": 8}),
        "local": (ModernBertConfig, {"local_attention": 16, "pad_token_id": 0}),
    }
    for name, (config_class, options) in kinds.items():
        model = bench.random_model(config_class, **options)
        wanted = bert_score(*bench.pairs, FrozenEncoder(model, bench.tokenizer, num_layers=2, device="cpu"))
        for dtype in ("float32", "bfloat16"):
            encoder = FrozenEncoder(model, bench.tokenizer, num_layers=2, dtype=dtype, device=bench.device)
            found = bert_score(*bench.pairs, encoder)
            batching = encoder._backbone.loaded(bench.device).batching
            yield f"{name}, {dtype} ({batching.way})", difference(found, wanted), LIMITS[dtype]


def check_metric(bench: Bench) -> Iterator[tuple[str, Any, float]]:
    """Compare two epochs of the metric, rankings and rewards with the CPU's."""
    for name, options, encoding in (
        ("idf", {"idf": True}, {}),
        ("all layers", {}, {"all_layers": True}),
        ("windows", {}, {"max_length": 12, "long_text": "window"}),
    ):
        epochs: list[dict[str, Tensor]] = []
        for device in (torch.device("cpu"), bench.device):
            metric = BERTScore(FrozenEncoder(MODEL, num_layers=LAYER, **encoding), **options).to(device)
            for _ in range(2):
                metric.reset()
                for i in range(0, len(bench.pairs[0]), 5):
                    metric.update(bench.pairs[0][i : i + 5], bench.pairs[1][i : i + 5])
                epochs.append(metric.compute())
        yield f"metric, {name}", max(difference(epoch, epochs[0]) for epoch in epochs), 1e-4
    items = [bench.pairs[0][i : i + 4] for i in range(0, len(bench.pairs[0]) - 3, 4)]
    results = []
    for encoder in (FrozenEncoder(MODEL, num_layers=LAYER, device="cpu"), bench.encoder()):
        rewards = torch.tensor(BERTScoreReward(encoder)(*bench.pairs))
        results.append(torch.cat([*rank_candidates(items, encoder=encoder).scores, rewards]))
    yield "ranking and rewards", difference(*results), 1e-4


def loss_step(
    bench: Bench, device: torch.device, dtype: torch.dtype = torch.float32, *, hidden: bool = False
) -> Callable[[], list[Tensor]]:
    """Return a step of the loss, which returns its value and the gradient of logits or hidden states."""
    torch.manual_seed(0)
    batch = bench.tokenizer(bench.pairs[1][:8], padding=True, truncation=True, max_length=32, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100).to(device)
    encoder = FrozenEncoder(MODEL, num_layers=LAYER, dtype=dtype)
    loss = SoftBERTScoreLoss(encoder).to(device)
    head = torch.randn(len(bench.tokenizer), 16).to(device, dtype)
    inputs = torch.randn(*labels.shape, 16 if hidden else len(bench.tokenizer)).to(device, dtype).requires_grad_()

    def step() -> list[Tensor]:
        inputs.grad = None
        value: Any = loss.forward_hidden(inputs, head, labels) if hidden else loss(inputs, labels)
        value.backward()
        assert inputs.grad is not None
        return [value.detach(), inputs.grad]

    return step


def check_loss(bench: Bench) -> Iterator[tuple[str, Any, float]]:
    """Compare value and gradient of the loss with the CPU's, and two steps in deterministic mode."""
    for hidden in (False, True):
        name = "hidden states" if hidden else "logits"
        value, gradient = loss_step(bench, torch.device("cpu"), hidden=hidden)()
        found, of_device = loss_step(bench, bench.device, hidden=hidden)()
        yield f"loss of {name}", difference(found, value), 1e-4
        yield f"gradient of {name}", float((of_device.cpu() - gradient).norm() / gradient.norm()), 1e-3
        rounded, _ = loss_step(bench, bench.device, torch.bfloat16, hidden=hidden)()
        yield f"loss of {name}, bfloat16", difference(rounded, value), 0.03
    torch.use_deterministic_algorithms(True)
    try:
        twice = [
            [bert_score(*bench.pairs, bench.encoder("bfloat16"))["f1"], *loss_step(bench, bench.device)()]
            for _ in range(2)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    yield "deterministic mode: two runs", max(map(difference, *twice)), 0


def check_precision(bench: Bench) -> Iterator[tuple[str, Any, float]]:
    """Allow TF32, and autocast: models stay packed, and similarities exact."""
    wanted = bert_score(*bench.pairs, bench.encoder())
    with torch.autocast(bench.device.type, torch.bfloat16):
        yield "autocast", difference(bert_score(*bench.pairs, bench.encoder()), wanted), 1e-5
    torch.set_float32_matmul_precision("high")
    try:
        encoder = FrozenEncoder(MODEL, num_layers=LAYER - 1, device=bench.device)
        equal = bert_score(bench.pairs[0], bench.pairs[0], encoder)["f1"]
        yield "TF32: equal texts score 1", float((equal - 1).abs().max()), 1e-6
        yield "TF32: is packed", float(encoder._backbone.loaded(bench.device).batching != PACKED), 0
        yield "TF32: change of F1", difference(bert_score(*bench.pairs, bench.encoder()), wanted), 1e-3
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def limited(bench: Bench, limit: int) -> Iterator[None]:
    """Limit the memory of the device to a number of bytes."""
    if not bench.on_gpu:
        yield
        return
    total = torch.cuda.get_device_properties(bench.device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0), bench.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)


def check_memory(bench: Bench) -> Iterator[tuple[str, Any, float]]:
    """Let memory run out, and see what is left once an encoder is unloaded or gone."""
    encoder, texts = bench.encoder(), [" ".join(chain(*zip(*bench.many, strict=True)))[:4000]] * 2 + bench.many[0]
    wanted = encoder.encode(texts, bench.device).vectors.cpu()
    if bench.on_gpu:
        torch.cuda.empty_cache()
    with limited(bench, bench.allocated() + wanted.nbytes + 2**28), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = encoder.encode(texts, bench.device).vectors.cpu()
    yield "out of memory: vectors", difference(found, wanted), 1e-3
    del encoder, found
    before = bench.allocated()
    metric = BERTScore(bench.encoder(layer=LAYER - 2)).to(bench.device)
    metric.update(*bench.pairs)
    metric.compute()
    metric.reset()
    metric.encoder.unload(bench.device)
    metric.cpu()
    yield "bytes left after unload", float(bench.allocated() - before), 0


def measure_counts(bench: Bench) -> Iterator[tuple[str, Any, None]]:
    """Count kernels and waits of an update of 16 pairs and of a step of the loss."""
    for dtype in LIMITS:
        metric = BERTScore(bench.large(dtype), cache_bytes=0).to(bench.device)
        yield f"update of 16 pairs, {dtype}", bench.count(partial(metric.update, *(x[:16] for x in bench.many))), None
    for hidden in (False, True):
        step = loss_step(bench, bench.device, torch.bfloat16, hidden=hidden)
        yield f"step of the loss, hidden={hidden}", bench.count(step), None


def measure_times(bench: Bench) -> Iterator[tuple[str, Any, None]]:
    """Time scoring next to bert-score, validation next to torchmetrics, and the loss next to cross-entropy."""
    encoders = {dtype: bench.large(dtype) for dtype in LIMITS}
    model, tokenizer = encoders["float32"].backbone(bench.device), bench.tokenizer
    idf = dict.fromkeys(range(len(tokenizer)), 1.0)
    calls: dict[str, Callable[[], Any]] = {
        "bert-score": lambda: bert_cos_score_idf(
            model, *bench.many, tokenizer, idf, device=bench.device, batch_size=64
        ),
        **{dtype: partial(bert_score, *bench.many, encoder) for dtype, encoder in encoders.items()},
    }
    best = bench.best(calls)
    yield f"seconds of {len(bench.many[0])} pairs", best, None
    yield "faster than bert-score", {name: round(best["bert-score"] / best[name], 2) for name in encoders}, None
    peer = PeerBERTScore(
        model=model,
        user_tokenizer=lambda texts, length: tokenizer(
            texts, padding="max_length", truncation=True, max_length=64, return_tensors="pt"
        ),
        user_forward_fn=lambda model, batch: model(batch["input_ids"], batch["attention_mask"]).last_hidden_state,
        max_length=64,
        device=bench.device,
    )
    metrics: dict[str, Any] = {name: BERTScore(encoder).to(bench.device) for name, encoder in encoders.items()}
    part = [texts[: len(texts) // 4] for texts in bench.many]

    def validate(metric: Any) -> None:
        metric.reset()
        for i in range(0, len(part[0]), 16):
            metric.update(*(texts[i : i + 16] for texts in part))
        metric.compute()

    best = bench.best({name: partial(validate, metric) for name, metric in [("torchmetrics", peer), *metrics.items()]})
    yield f"seconds of a validation of {len(part[0])} pairs", best, None
    yield "faster than torchmetrics", {name: round(best["torchmetrics"] / best[name], 2) for name in metrics}, None
    yield "seconds of a step of the loss", bench.best(_loss_calls(bench, encoders["bfloat16"])), None


def measure_throughput(bench: Bench) -> Iterator[tuple[str, Any, None]]:
    """Score distinct pairs in bfloat16, next to bert-score, to the rate of products, and to the time of kernels."""
    numbers = range(20_000 if bench.on_gpu else 16)
    pairs = [[f"{texts[i % len(texts)]} {i}" for i in numbers] for texts in bench.many]
    encoder, dtype = bench.large("bfloat16"), torch.bfloat16
    model, idf = encoder.backbone(bench.device), dict.fromkeys(range(len(bench.tokenizer)), 1.0)
    peer = partial(bert_cos_score_idf, model, *pairs, bench.tokenizer, idf, device=bench.device, batch_size=64)
    factors = [torch.randn(4096, 4096, device=bench.device, dtype=dtype) for _ in range(2)] if bench.on_gpu else []
    score = partial(bert_score, *pairs, encoder)
    products = {"products": lambda: [torch.mm(*factors) for _ in range(100)]} if factors else {}
    best = bench.best({"bert-score": peer, "bert_score": score, **products})
    rates = {name: round(len(numbers) / best[name]) for name in ("bert-score", "bert_score")}
    yield f"pairs per second of {len(numbers)}, bfloat16", rates, None
    if not bench.on_gpu:
        return
    rate = 100 * 2 * 4096**3 / best["products"]
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    tokens = int(encoder.tokenizer([*pairs[0], *pairs[1]]).lengths.sum())
    yield "share of the rate of products", round(2 * weights * tokens / rate / best["bert_score"], 3), None
    with torch.profiler.profile() as profile:
        began = time.perf_counter()
        score()
        bench.synchronize()
        seconds = time.perf_counter() - began
    busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    yield "share of the time in which the GPU computes", round(busy / seconds, 3), None


def _loss_calls(bench: Bench, encoder: FrozenEncoder) -> dict[str, Callable[[], Any]]:
    size, rows, width = len(bench.tokenizer), 8 if bench.on_gpu else 2, encoder.config.hidden_size
    labels = torch.randint(1000, size, (rows, 128 if bench.on_gpu else 16), device=bench.device)
    answers = labels.masked_fill(torch.arange(labels.shape[1], device=bench.device) < labels.shape[1] * 7 // 8, -100)
    states = torch.randn(*labels.shape, width, device=bench.device, dtype=torch.bfloat16).requires_grad_()
    head = torch.randn(size, width, device=bench.device, dtype=torch.bfloat16).mul_(0.02).requires_grad_()
    loss: Any = SoftBERTScoreLoss(encoder).to(bench.device)

    def cross_entropy() -> None:
        logits = (states @ head.T).float().flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, labels.flatten()).backward()

    return {
        "cross-entropy": cross_entropy,
        "logits": lambda: loss(states @ head.T, labels).backward(),
        "logits, one position of eight": lambda: loss(states @ head.T, answers).backward(),
        "hidden states": lambda: sum(loss.forward_hidden(states, head, labels, return_cross_entropy=True)).backward(),
    }


CHECKS = (
    check_scores,
    check_metric,
    check_loss,
    check_precision,
    check_memory,
    measure_counts,
    measure_times,
    measure_throughput,
)


def run(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield a row for each figure, with ``failed`` where it is above its limit or an error."""
    for check in CHECKS:
        try:
            for what, value, limit in check(bench):
                # NaN is not at most the limit.
                yield {"what": what, "value": value, "limit": limit, "failed": limit is not None and not value <= limit}
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            yield {"what": check.__name__, "value": f"{type(error).__name__}: {error}", "limit": None, "failed": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per figure for each GPU, and return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args(arguments)
    quieten()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    count = torch.cuda.device_count()
    pairs = [(pair.summary, " ".join(pair.document.split()[:30])) for pair in collect_pairs(())]
    few, many = (
        ([text for text, _ in part], [text for _, text in part])
        for part in (pairs[:: len(pairs) // (64 if count else 8)], pairs[: 2048 if count else 16])
    )
    rows = []
    for device in [torch.device("cuda", number) for number in range(count)] or [torch.device("cpu")]:
        bench = Bench(device, few, many, AutoTokenizer.from_pretrained(MODEL))
        name = torch.cuda.get_device_name(device) if count else "cpu"
        for row in run(bench):
            rows.append({"device": name, **row})
            print("FAIL" if row["failed"] else "    ", f"{name}: {row['what']}: {row['value']}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1), encoding="utf-8")
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
