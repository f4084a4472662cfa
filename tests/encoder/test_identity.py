"""What counts as the same encoder: the contents of models, folders and tokenizers, and functions by object."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import normalizers
from tokenizers.pre_tokenizers import PreTokenizer
from torchmetrics import MetricCollection
from transformers import AutoModel, ByT5Tokenizer, T5Model
from transformers.tokenization_mistral_common import MistralCommonBackend

from bertscore_tm import Baseline, BERTScore, FrozenEncoder, PairScorer
from bertscore_tm.encoder.identity import hash_model, hash_structure
from bertscore_tm.scoring.baselines import make_baseline
from bertscore_tm.utilities.files import write_atomically
from tests.support.models import EVERY_FAMILY, randomised, tiny_config, tiny_model

PAIRS = ["a cat sat on the mat", "rain tomorrow"], ["the cat sat", "sun today"]


def score(encoder):
    metric = BERTScore(encoder, component="f1", reduction="none")
    metric.update(PAIRS[0], PAIRS[1])
    return metric.compute()


# Contents.


@pytest.mark.parametrize("source", ["ready model", "folder"])
def test_changed_weights_change_the_scores_of_a_model_in_use(tmp_path, source):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    model.train()

    def encoder():
        if source == "folder":
            return FrozenEncoder(save(model, tmp_path / "model"), num_layers=2)
        return FrozenEncoder(model, tokenizer, num_layers=2)

    before = encoder()
    first = score(before)
    signature = before.signature()

    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert len(model.encoder.layer) == 3
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    after = encoder()
    expected = score(FrozenEncoder(copy.deepcopy(model), tokenizer, num_layers=2))
    assert torch.equal(score(after), expected)
    assert not torch.allclose(expected, first, atol=1e-3)
    assert torch.equal(score(before), first)
    assert after.signature() != signature
    if source == "folder":
        with pytest.raises(OSError, match=r"contents of .*model.* changed.*Create the encoder again"):
            before.signature()
        return
    # Both copies keep their weights in other processes.
    for copied in (before, after):
        assert torch.equal(score(pickle.loads(pickle.dumps(copied))), score(copied))


def save(model, folder):
    model.save_pretrained(folder)
    tiny_model("bert")[1].save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("use", [FrozenEncoder.backbone, lambda encoder, device: encoder.tokenizer])
def test_a_folder_that_changes_before_it_is_loaded_is_an_error(tmp_path, use):
    model = copy.deepcopy(tiny_model("bert")[0])
    encoder = FrozenEncoder(save(model, tmp_path / "model"), num_layers=2)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.7)
    save(model, tmp_path / "model")

    with pytest.raises(OSError, match=r"contents of .*model.* changed.*Create the encoder again"):
        use(encoder, "cpu")


OF_UNKNOWN_NAMES = ["bpe.codes", "prophetnet.tokenizer", "source.spm", "dict.txt", "byte_maps.json", "notes"]
NO_PART_OF_A_MODEL = [
    *("README.md", "LICENSE", ".gitattributes", "train.log", "model.safetensors.lock", "eval_results.json"),
    *("trainer_log.jsonl", "all_results.json", "trainer_state.json", "training_args.bin", "optimizer.pt"),
    *("scheduler.pt", "scaler.pt", "rng_state_0.pth", "events.out.tfevents.1", "loss.png", "scores.csv"),
    *("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.onnx", "eval_results.txt"),
]


@pytest.mark.parametrize("name", OF_UNKNOWN_NAMES)
def test_every_file_that_may_be_loaded_is_a_part_of_the_model(tmp_path, name):
    folder = tmp_path / "model"
    save(tiny_model("bert")[0], folder)
    (folder / name).write_text("a b")
    encoder = FrozenEncoder(folder, num_layers=2)
    signature = encoder.signature()
    vectors = encoder.cache("cpu")
    scorer = PairScorer(folder, num_layers=2)
    pickled = pickle.dumps(scorer)
    (folder / name).write_text("b a")

    with pytest.raises(OSError, match=rf"contents of .*model.* changed .*\({name}\)"):
        encoder.signature()
    after = FrozenEncoder(folder, num_layers=2)
    assert after.signature() != signature
    assert after.cache("cpu") is not vectors
    with pytest.raises(ValueError, match=rf"\(files: {name}\)\."):
        pickle.loads(pickled)({"candidate": ["a cat"], "reference": ["a cat"]})
    assert PairScorer(folder, num_layers=2).signature != scorer.signature


def test_the_home_folder_is_found_in_a_models_path(tmp_path, monkeypatch):
    """Python does not replace ~, and the model was looked for on the hub."""
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tiny_model("bert")[0], tmp_path / "model")
    encoder = FrozenEncoder(tmp_path / "model", num_layers=2)
    home = FrozenEncoder("~/model", num_layers=2)

    assert home.signature() == encoder.signature()
    assert PairScorer("~/model", num_layers=2).signature["contents"] == encoder.signature()["contents"]
    table = make_baseline(FrozenEncoder("~/model", all_layers=True), ["a cat", "a dog", "rain"], 2)
    write_atomically("~/table.csv", table.to_csv())
    assert (tmp_path / "table.csv").exists()
    assert torch.equal(Baseline.read("~/table.csv").table, Baseline.read(tmp_path / "table.csv").table)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json", "tokenizer.json"])
def test_a_file_of_a_model_names_its_folder(tmp_path, name):
    folder = save(tiny_model("bert")[0], tmp_path / "model")
    path = tmp_path / "model" / name
    path.touch()

    with pytest.raises(OSError, match=f"model '.*{name}' is a file: pass its folder, ") as caught:
        FrozenEncoder(path, num_layers=2)
    assert str(caught.value).endswith(f"pass its folder, {str(folder)!r}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model.safetensors", r"pass a folder with config.json, weights and tokenizer, as save_pretrained\(folder\)"),
        ("last.ckpt", r"pass a folder with config.json, weights and tokenizer, as save_pretrained\(folder\)"),
        ("model-Q4_K_M.gguf", "GGUF is not read. Pass the folder or hub name of the model from which this file was"),
    ],
)
def test_a_file_without_its_model_names_the_remedy(tmp_path, name, remedy):
    (tmp_path / name).touch()
    with pytest.raises(OSError, match=f"model '.*{name}' is a file: {remedy}"):
        FrozenEncoder(str(tmp_path / name))


def test_files_that_are_no_part_of_a_model_may_change(tmp_path):
    folder = tmp_path / "model"
    save(tiny_model("bert")[0], folder)
    encoder = FrozenEncoder(folder, num_layers=2)
    signature = encoder.signature()
    for name in NO_PART_OF_A_MODEL:
        (folder / name).write_text("a b")
    (folder / "checkpoint-5").mkdir()

    assert encoder.signature() == FrozenEncoder(folder, num_layers=2).signature() == signature


def test_tables_count_where_the_code_of_a_folder_may_read_them(tmp_path):
    folder = tmp_path / "model"
    save(tiny_model("bert")[0], folder)
    signatures = set()
    for table in ("a", "b"):
        for name in ("scores.csv", "scaler.py"):
            (folder / name).write_text(table)
            signatures.add(FrozenEncoder(folder, num_layers=2, trust_remote_code=True).signature())

    assert len(signatures) == 4


@pytest.fixture
def any_peft(monkeypatch):
    """Let transformers take the installed peft: each release requires a newer one, which an index may lack."""
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", "0.17.0")


def with_adapters():
    """Return a model with the adapters "a" (active) and "b"."""
    model = copy.deepcopy(tiny_model("bert")[0])
    for name in ("a", "b"):
        model.add_adapter(LoraConfig(target_modules=["query", "value"], init_lora_weights=False), adapter_name=name)
    model.set_adapter("a")
    return model.eval()


@pytest.mark.usefixtures("any_peft")
def test_a_folder_with_an_adapter_next_to_a_model_is_refused(tmp_path):
    model = with_adapters()
    model.save_pretrained(tmp_path)
    save(tiny_model("bert")[0], tmp_path)

    with pytest.raises(OSError, match=r"adapter_config.json\): merge .*merge_and_unload\(\).* folder of its own"):
        FrozenEncoder(tmp_path, num_layers=2)


SWITCHES = {
    "other adapter": lambda model: model.set_adapter("b"),
    "no adapter": lambda model: model.disable_adapters(),
    "scaling": lambda model: model.encoder.layer[0].attention.self.query.scaling.update(a=5.0),
    "hook": lambda model: model.encoder.layer[0].register_forward_hook(lambda module, inputs, states: states + 1),
    "activation": lambda model: setattr(model.encoder.layer[0].intermediate, "intermediate_act_fn", torch.nn.Tanh()),
    "epsilon": lambda model: setattr(model.encoder.layer[0].output.LayerNorm, "eps", 0.5),
    "tensor": lambda model: setattr(model.encoder, "offset", torch.ones(2)),
}


@pytest.mark.usefixtures("any_peft")
@pytest.mark.parametrize("switch", SWITCHES)
def test_what_decides_a_pass_besides_saved_tensors_counts(switch):
    model = with_adapters()
    tokenizer = tiny_model("bert")[1]
    before = FrozenEncoder(model, tokenizer, num_layers=2)
    again = FrozenEncoder(copy.deepcopy(model), tokenizer, num_layers=2)

    assert before.signature() == again.signature()
    SWITCHES[switch](model)
    after = FrozenEncoder(model, tokenizer, num_layers=2)
    assert after.signature() != before.signature()
    if switch != "tensor":  # which the model does not read
        assert not torch.allclose(score(after), score(before), atol=1e-4)
    metrics = [BERTScore(encoder) for encoder in (before, after)]
    for metric in metrics:
        metric.update(PAIRS[0], PAIRS[1])
    with pytest.raises(ValueError, match="the state belongs to a metric that differs in model"):
        metrics[0].merge_state(metrics[1].metric_state)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_saved_and_used_model_keeps_its_identity(family, tmp_path):
    model, tokenizer = tiny_model(family)
    model.save_pretrained(tmp_path)
    used = AutoModel.from_pretrained(tmp_path)
    encoder = used.get_encoder() if used.config.is_encoder_decoder else used
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode("a cat sat on the mat " * 3)])
        encoder(input_ids=ids, output_hidden_states=True)

    identities = [FrozenEncoder(part, tokenizer, num_layers=1).identity for part in (model, used)]

    assert identities[0] == identities[1]


def test_rotary_frequencies_of_long_texts_do_not_count():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    model = randomised(AutoModel.from_config(tiny_config("llama", max_position_embeddings=8, rope_parameters=rope)))
    tokenizer = tiny_model("llama")[1]
    signature = FrozenEncoder(model, tokenizer, num_layers=1).signature()
    frequencies = model.rotary_emb.inv_freq.clone()
    with torch.no_grad():
        model(torch.arange(5, 45)[None])

    assert not torch.equal(model.rotary_emb.inv_freq, frequencies)
    assert FrozenEncoder(model, tokenizer, num_layers=1).signature() == signature


def test_the_model_that_scores_is_never_asked_for_its_state(monkeypatch):
    """With bitsandbytes, ``state_dict()`` unpacks weights that were packed for a CPU, in place."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", lambda *_, **options: pytest.fail("the state was read"))
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=2)
    score(encoder)

    assert len(encoder.signature()["contents"]) == 8


class Scaled(torch.Tensor):
    """Weights of two tensors, which cannot be read as one, like those of torchao."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values, scale):
        self.values_ = values
        self.scale = scale

    def __tensor_flatten__(self):
        return ["values_", "scale"], {"block": 32}

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].values_, arguments[0].scale)
        raise NotImplementedError(f"no kernel of {function}")


def test_weights_of_several_tensors_are_compared_by_their_parts():
    hashes = set()
    for values, scale in ((0, 1.0), (1, 1.0), (0, 2.0), (0, 1.0)):
        module = torch.nn.Module()
        weight = Scaled(torch.full((2, 3), values, dtype=torch.int8), torch.tensor(scale))
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        hashes.add(hash_model(module, hash_structure(module)))

    assert len(hashes) == 3


class Packed(torch.nn.Parameter):
    """Weights with a scale next to them, like those of bitsandbytes."""


def test_attributes_of_quantized_weights_count():
    hashes = set()
    for scale in (1.0, 2.0, 1.0):
        module = torch.nn.Module()
        module.weight = Packed(torch.zeros(2, 3), requires_grad=False)
        module.weight.quant_state = SimpleNamespace(absmax=torch.tensor(scale), block=64)
        hashes.add(hash_model(module, hash_structure(module)))

    assert len(hashes) == 2


class Sharded(torch.nn.Parameter):
    def __deepcopy__(self, memo):
        raise AssertionError("FSDP does not support deepcopy")


class Unreadable(torch.nn.Parameter):
    def detach(self):
        raise NotImplementedError("no kernel of view")


@pytest.mark.parametrize("kind", [Sharded, Unreadable])
def test_weights_that_cannot_be_read_are_an_error_with_a_remedy(kind):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    model.encoder.layer[0].output.dense.weight = kind(torch.zeros(32, 48))

    with pytest.raises(ValueError, match=r"cannot be (copied|read) \(.*\)\. Pass the model before it is quantized"):
        FrozenEncoder(model, tokenizer, num_layers=2)


WRAPPERS = {
    "PeftModel": (lambda model: get_peft_model(model, LoraConfig(target_modules=["query"])), "merge_and_unload.* own"),
    "OptimizedModule": (torch.compile, r"pass its \._orig_mod"),
    "DataParallel": (torch.nn.DataParallel, r"pass its \.module"),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_is_an_error_that_names_the_model_in_it(kind):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    wrap, remedy = WRAPPERS[kind]

    with pytest.raises(ValueError, match=rf"^{kind}\w* is not a model of transformers: .*{remedy}"):
        FrozenEncoder(wrap(model), tokenizer, num_layers=2)


# Tokenizers.


def require_separate(encoders, agreeing, differing):
    """Check that a collection of two metrics, which agree on its first batch, gives what each gives alone."""
    metrics = {str(number): BERTScore(encoder, component="f1") for number, encoder in enumerate(encoders)}
    collection = MetricCollection({name: metric.clone() for name, metric in metrics.items()})
    for preds, target in ((agreeing, agreeing), (differing, PAIRS[1])):
        collection.update(preds, target)
        for metric in metrics.values():
            metric.update(preds, target)
    alone = {name: metric.compute() for name, metric in metrics.items()}
    assert abs(alone["0"] - alone["1"]) > 1e-3
    assert encoders[0].cache("cpu") is not encoders[1].cache("cpu")
    assert collection.compute() == alone


EDITS = {
    "truncation": lambda model, tokenizer: setattr(tokenizer, "truncation_side", "left"),
    "limit": lambda model, tokenizer: setattr(tokenizer, "model_max_length", 9),
    "separator": lambda model, tokenizer: setattr(tokenizer, "sep_token", "[UNK]"),
    "normalizer": lambda model, tokenizer: setattr(
        tokenizer.backend_tokenizer, "normalizer", normalizers.BertNormalizer(lowercase=False)
    ),
    "new token": lambda model, tokenizer: tokenizer.add_tokens(["mat"]),
    "configuration": lambda model, tokenizer: setattr(model.config, "num_attention_heads", 2),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_tokenizer_changes_signature_and_cache(edit):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    before = FrozenEncoder(model, tokenizer, num_layers=2)
    signature = before.signature()
    cache = before.cache("cpu")
    # Its use changes nothing: calls leave their limits in the tokenizer.
    tokenizer(["a cat"], truncation=True, max_length=5, padding="max_length")

    assert FrozenEncoder(model, tokenizer, num_layers=2).signature() == signature
    EDITS[edit](model, tokenizer)
    after = FrozenEncoder(model, tokenizer, num_layers=2)
    assert after.signature() != signature
    assert after.cache("cpu") is not cache


def test_python_tokenizers_are_compared_by_settings_and_files(tmp_path):
    model = randomised(T5Model(tiny_config("t5", vocab_size=384)))
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizers = [ByT5Tokenizer(), ByT5Tokenizer.from_pretrained(tmp_path), ByT5Tokenizer()]
    tokenizers[2].truncation_side = "left"
    same, loaded, other = (FrozenEncoder(model, tokenizer, num_layers=1).signature() for tokenizer in tokenizers)

    assert same == loaded != other


class Characters:
    """A pre-tokenizer in Python, which the tokenizers package cannot serialise: single characters."""

    def pre_tokenize(self, text):
        text.split(lambda _, part: [part[i : i + 1] for i in range(len(str(part)))])


def test_a_tokenizer_that_cannot_be_copied_is_refused():
    model, tokenizer = tiny_model("bert")
    custom = copy.deepcopy(tokenizer)
    custom.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Characters())  # like RoFormer's

    with pytest.raises(ValueError, match=r"cannot be copied \(.*cannot be serialized.*\)\. .* pass the folder"):
        FrozenEncoder(model, custom, num_layers=2)


def test_a_folders_tokenizer_is_loaded_again_instead_of_pickled(tmp_path):
    encoder = FrozenEncoder(save(tiny_model("bert")[0], tmp_path), num_layers=2)
    expected = score(encoder)
    # As that of RoFormer.
    encoder.tokenizer.tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Characters())

    assert torch.equal(score(pickle.loads(pickle.dumps(encoder))), expected)


def test_tokenizers_of_mistral_common_are_refused_by_name():
    tokenizer = object.__new__(MistralCommonBackend)  # to make one needs its package
    with pytest.raises(TypeError, match=r"a MistralCommonBackend lists no added tokens.*PreTrainedTokenizerFast"):
        FrozenEncoder(tiny_model("mistral")[0], tokenizer, num_layers=1)


# Functions of the caller.


def scaled(factor):
    """Return a function that differs from others of its name in texts of more than four tokens."""

    def forward(model, inputs):
        states = model(**inputs).last_hidden_state
        return torch.cat([states[:, :4], states[:, 4:] + factor], dim=1)

    return forward


def test_a_collection_keeps_functions_of_one_name_apart(encoder):
    model = encoder.backbone("cpu")
    tokenizer = encoder.tokenizer.tokenizer
    functions = [scaled(0.0), scaled(0.5)]
    encoders = [FrozenEncoder(model, tokenizer, forward_fn=function) for function in functions]
    require_separate(encoders, ["hello", "rain"], PAIRS[0])
