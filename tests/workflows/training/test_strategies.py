"""Training is bitwise unchanged by scoring: precisions, compilation, errors."""

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, ScoredTextWriter
from tests.support import lightning_runs as runs

# Precisions, and ways to train


class Partly(runs.ShardedChooser):
    """One of its layers is in evaluation mode all the time."""

    def __init__(self, choices, references):
        super().__init__(choices, references)
        self.net[1].eval()

    def training_step(self, batch, batch_idx):
        # `self.log` cannot be compiled.
        return nn.functional.cross_entropy(self.net(self.inputs[batch]), batch)


def fitted(pairs, folder, way, precision, callbacks):
    """Train plainly, with accumulated gradients or compiled, and return the module, its state and the trainer."""
    torch.compiler.reset()
    module = runs.chooser(pairs, kind=Partly)
    keep = runs.Keep()
    graphs = []
    first = runs.weights(module)

    def run_as_traced(graph, inputs):
        graphs.append(graph)
        return graph.forward

    options = {"accumulate_grad_batches": 2 if way == "accumulated" else 1, "precision": precision}
    run = runs.trainer(folder, [keep, *callbacks], val_check_interval=1, **options)
    trained = module
    if way == "compiled":
        trained = torch.compile(module, backend=run_as_traced)
    run.fit(trained)
    assert bool(graphs) == (way == "compiled")
    assert not torch.equal(runs.weights(module).float(), first)
    return module, keep.found, run


MATRIX = [("plain", "32-true"), ("plain", "bf16-mixed"), ("plain", "bf16-true")]
MATRIX += [("accumulated", "bf16-mixed"), ("compiled", "bf16-mixed")]


# Both generators write to one folder.
@pytest.mark.filterwarnings("ignore:.*has files of an earlier run", "ignore:Found 1 module.s. in eval mode")
@pytest.mark.parametrize(("way", "precision"), MATRIX)
def test_training_is_bitwise_equal_to_a_run_without_the_callback(pairs, shallow, tmp_path, way, precision):
    _, plain, _ = fitted(pairs, tmp_path, way, precision, [])
    assert plain["weights"].dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float32)
    assert False in plain["flags"]
    drawn = []
    generators = [None, runs.generate_wildly]
    if way == "compiled":
        # Tracing takes most of the time.
        generators = [runs.generate_wildly]

    for generate in generators:
        callback = BERTScoreCallback(BERTScore(shallow, idf=True), generate)
        others = [SampleLogger(1, 0, writer=lambda *_: drawn.append(torch.rand(1))), ScoredTextWriter()]
        module, scored, run = fitted(pairs, tmp_path, way, precision, [*others, callback])

        assert runs.differences(plain, scored) == []
        preds, references = runs.texts_of(module.written if generate else module.seen)
        assert len(preds) == 7
        assert drawn
        expected = runs.means(preds, references, shallow, idf=True)
        assert runs.logged(run.callback_metrics) == pytest.approx(expected, abs=1e-6)


# Errors in the middle


class Interrupt(BaseException):
    """Like a KeyboardInterrupt, after which Lightning would end the process."""


class State(pl.Callback):
    """Keeps what scoring may not change, when each batch has been validated and when an error has ended the run."""

    def __init__(self):
        self.before, self.after = [], []

    def on_validation_batch_end(self, trainer, pl_module, *args):
        self.before.append(runs.random_states_and_flags(pl_module))

    def on_exception(self, trainer, pl_module, exception):
        modes = [torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")]
        self.after.append((runs.random_states_and_flags(pl_module), modes, torch.is_inference_mode_enabled()))


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode")
@pytest.mark.parametrize(
    ("precision", "sanity", "error"),
    [("32-true", 0, KeyError), ("bf16-mixed", 2, KeyError), ("bf16-true", 0, KeyError), ("32-true", 0, Interrupt)],
)
def test_state_after_failed_generation(pairs, shallow, tmp_path, precision, sanity, error):
    calls = []

    def generate(pl_module, batch):
        modes = torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
        calls.append((*modes, pl_module.training))
        texts = runs.generate_wildly(pl_module, batch)
        if len(calls) == 2:
            raise error("no text")
        return texts

    state = State()
    module = runs.chooser(pairs, kind=Partly)
    callback = BERTScoreCallback(BERTScore(shallow), generate)
    run = runs.trainer(tmp_path, [state, callback], num_sanity_val_steps=sanity, precision=precision)

    with pytest.raises(error, match="no text"):
        run.fit(module)

    inside = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert calls == [(inside, precision == "bf16-mixed", False, False)] * 2
    [(state_after, modes, inference)] = state.after
    assert len(state.before) == 2
    assert runs.differences(state.before[-1], state_after) == []
    assert not any(state_after["flags"])  # as in every validation
    assert modes == [True, torch.float32, False]
    assert not inference
