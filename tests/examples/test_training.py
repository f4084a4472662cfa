"""The training examples run, what they report is BERTScore as bert-score computes it, and their losses train."""

import json
import os
import re
import socket

import bert_score as oracle
import pytest
import torch
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

from examples import docstring_training, summarize_docstrings
from examples.docstring_training import LOSSES, Collate, MinimumRisk, SelfCritical, Summarizer, load_generator
from examples.docstrings import DEFAULT_PACKAGES, FEWER_PACKAGES, DocstringPair, load_corpus, split_by_module
from tests.support.ranks import run_ranks

SIZES = {"train-pairs": 12, "val-pairs": 2, "eval-pairs": 6, "batch-size": 4, "warmup-steps": 1, "steps": 2}
SMALL = [f"--{name}={size}" for name, size in SIZES.items()]
ARMS = {
    "soft": "cross-entropy + BERTScore loss",
    "self-critical": "cross-entropy + self-critical loss",
    "minimum-risk": "cross-entropy + minimum-risk loss",
}
WEIGHTS = {"soft": 1.0, "self-critical": 0.2, "minimum-risk": 10.0, "none": 0.0}
DEMO_LOSSES = ("none", "minimum-risk")  # without and with a second arm; the losses themselves are tested above

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*many workers.*"),
]


@pytest.fixture(scope="module")
def corpus(docstring_pairs):
    """Training pairs and held-out ones."""
    return split_by_module(docstring_pairs)


@pytest.fixture(scope="module")
def generator(minilm, tmp_path_factory):
    """Folder of a small random generator with the encoder's vocabulary, whose samples end early or late."""
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    end = tokenizer.sep_token_id
    sizes = {f"{half}_{what}": 2 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 128}
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer),
        decoder_start_token_id=tokenizer.cls_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=end,
        forced_eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    model = BartForConditionalGeneration(config)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight *= 37  # some tokens are likelier than others, the end among them
        weight[end] = 0
        model.final_logits_bias[0, end] = 10.8
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def summarizer(generator, encoder):
    return Summarizer(*load_generator(generator), encoder, learning_rate=1e-3)


@pytest.fixture
def batch(summarizer, corpus):
    return Collate(summarizer.tokenizer, summarizer.model.config.decoder_start_token_id)(list(enumerate(corpus[0][:4])))


@pytest.fixture(scope="module")
def bert_score_f1(minilm):
    """F1 of candidates and references by bert-score, one number per pair; 0 for empty ones, where it raises."""
    scorer = oracle.BERTScorer(model_type=minilm, num_layers=5, batch_size=1)

    def f1(candidates, references):
        scores = torch.zeros(len(candidates))
        rows = [i for i, text in enumerate(candidates) if text.strip()]
        if rows:
            scores[rows] = scorer.score([candidates[i] for i in rows], [references[i] for i in rows])[2]
        return scores

    return f1


def probability(module, batch):
    """The sampled summaries with the token probabilities of transformers' own decoding, and how many tokens count."""
    model, end = module.model.eval(), module.tokenizer.sep_token_id
    output = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=docstring_training.TARGET_TOKENS,
        do_sample=True,
        num_return_sequences=3,
        num_beams=1,
        top_k=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    rows = []
    for i, ids in enumerate(output.sequences[:, 1:].tolist()):
        length = ids.index(end) + 1 if end in ids else len(ids)
        rows.append([output.logits[t][i].log_softmax(-1)[ids[t]].item() for t in range(length)])
    texts = module.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    model.train()
    return texts, rows


def test_samples_come_from_the_model_and_carry_their_log_probabilities(summarizer, batch):
    torch.manual_seed(5)
    texts, expected = probability(summarizer, batch)
    # What a model's files may ask of decoding must not change the distribution that is sampled from.
    settings = summarizer.model.generation_config
    settings.top_k, settings.temperature, settings.no_repeat_ngram_size, settings.num_beams = 1, 0.1, 2, 2
    settings.forced_bos_token_id = 5
    torch.manual_seed(5)
    found, log_probs, mask = summarizer.sample(batch, 3)
    assert found == texts
    assert len(set(texts)) > 3
    assert log_probs.shape[:2] == (4, 3)
    lengths = [len(row) for row in expected]
    assert min(lengths) < max(lengths)
    assert mask.flatten(0, 1).sum(1).tolist() == lengths
    for row, (values, real) in zip(
        expected, zip(log_probs.flatten(0, 1), mask.flatten(0, 1), strict=True), strict=True
    ):
        assert values[real].tolist() == pytest.approx(row, abs=1e-3)
    assert all(part.training for part in summarizer.model.modules())
    log_probs.sum().backward()
    assert summarizer.model.get_output_embeddings().weight.grad.abs().sum() > 0


def test_self_critical_loss_is_the_advantage_over_greedy_decoding(summarizer, batch, encoder, bert_score_f1):
    torch.manual_seed(1)
    texts, log_probs, mask = summarizer.sample(batch, 1)
    sampled = bert_score_f1(texts, batch["summary"])
    greedy = bert_score_f1(summarizer.summarize(batch), batch["summary"])
    assert (sampled - greedy).abs().max() > 0.01
    expected = 0.0
    for i in range(4):
        sequence = sum(log_probs[i, 0, t].item() for t in range(mask.shape[2]) if mask[i, 0, t])
        expected -= (sampled[i] - greedy[i]).item() * sequence / 4
    torch.manual_seed(1)
    loss, figures = SelfCritical(encoder, summarizer.tokenizer, [])(summarizer, batch, torch.zeros(1))
    assert loss.item() == pytest.approx(expected, abs=1e-3)
    assert figures["sampled_f1"].item() == pytest.approx(sampled.mean().item(), abs=1e-6)
    assert figures["greedy_f1"].item() == pytest.approx(greedy.mean().item(), abs=1e-6)


def test_minimum_risk_loss_is_the_expected_risk_over_different_samples(summarizer, batch, encoder, bert_score_f1):
    summarizer.model.final_logits_bias[0, summarizer.tokenizer.sep_token_id] = 15
    torch.manual_seed(1)
    texts, log_probs, mask = summarizer.sample(batch, 4)
    assert any(len(set(texts[4 * i : 4 * i + 4])) < 4 for i in range(4))
    assert any(len(set(texts[4 * i : 4 * i + 4])) > 2 for i in range(4))
    risks, all_rewards = [], []
    for i in range(4):
        first = {}
        for j in range(4):
            first.setdefault(texts[4 * i + j], j)
        rewards = bert_score_f1(texts[4 * i : 4 * i + 4], [batch["summary"][i]] * 4)
        all_rewards.append(rewards)
        weights = {j: (0.02 * log_probs[i, j][mask[i, j]].sum()).exp().item() for j in first.values()}
        risks.append(sum(w * (1 - rewards[j].item()) for j, w in weights.items()) / sum(weights.values()))
    torch.manual_seed(1)
    loss, figures = MinimumRisk(encoder, summarizer.tokenizer, [])(summarizer, batch, torch.zeros(1))
    assert loss.item() == pytest.approx(sum(risks) / 4, abs=1e-5)
    assert figures["sampled_f1"].item() == pytest.approx(torch.stack(all_rewards).mean().item(), abs=1e-6)


@pytest.mark.parametrize("name", ARMS)
def test_added_loss_joins_cross_entropy_with_its_weight(name, generator, corpus, encoder):
    def gradient(weight, added):
        module = Summarizer(*load_generator(generator), encoder, 1e-3, added, weight)
        module.log = module.log_dict = lambda *args, **kwargs: None
        items = Collate(module.tokenizer, module.model.config.decoder_start_token_id)(list(enumerate(corpus[0][:4])))
        torch.manual_seed(2)
        module.training_step(items, 0).backward()
        return torch.cat([parameter.grad.flatten() for parameter in module.model.parameters()])

    texts = [pair.summary for pair in corpus[0]]
    added = LOSSES[name](encoder, None if name != "soft" else load_generator(generator)[1], texts)
    plain, once, twice = gradient(1.0, None), gradient(1.0, added), gradient(2.0, added)
    assert (once - plain).norm() > 1e-5
    torch.testing.assert_close(twice - once, once - plain, atol=2e-6, rtol=1e-3)
    torch.testing.assert_close(gradient(0.0, added), plain)


@pytest.fixture(scope="module")
def demo_runs(corpus, generator, tmp_path_factory):
    """What the demo returns, writes and prints with each loss."""
    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summarize_docstrings, "load_corpus", lambda **_: corpus)
        for loss in DEMO_LOSSES:
            printed = []
            patch.setattr(summarize_docstrings, "print_once", lambda text, printed=printed, **_: printed.append(text))
            folder = tmp_path_factory.mktemp(loss)
            results = summarize_docstrings.main(
                [*SMALL, "--loss", loss, "--generator", generator, "--learning-rate", "0.1", "--output", str(folder)]
            )
            assert results == json.loads((folder / "results.json").read_text())
            rows = [json.loads(line) for line in (folder / "summaries.jsonl").read_text().splitlines()]
            runs[loss] = results, rows, "\n".join(printed), folder
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("loss", DEMO_LOSSES)
def test_demo_reports_the_scores_of_what_it_wrote(demo_runs, loss, bert_score_f1):
    results, rows, printed, folder = demo_runs[loss]
    arms = ["before training", "cross-entropy", *([ARMS[loss]] if loss in ARMS else [])]
    assert list(results["scores"]) == arms
    assert [results["scores"][name]["steps"] for name in arms] == [0, 3, 3][: len(arms)]
    assert results["options"]["weight"] == str(WEIGHTS[loss])
    references = [row["reference"] for row in rows]
    assert len(rows) == results["held_out_pairs"] == 6
    means = {}
    for name in arms:
        means[name] = bert_score_f1([row[name] for row in rows], references).mean().item()
        assert results["scores"][name]["f1"] == pytest.approx(means[name], abs=1e-6)
        assert re.search(rf"^{re.escape(name)} +\d .* {means[name]:.4f}$", printed, re.MULTILINE)
    checkpoints = {path.parent.name for path in folder.glob("*/*.ckpt")}
    assert len(checkpoints) == len(arms)
    if loss == "none":
        assert results["f1_difference"] is None
        assert "--loss none: trained with cross-entropy alone" in printed
        assert "interval" not in printed
    else:
        difference = means[ARMS[loss]] - means["cross-entropy"]
        assert results["f1_difference"]["difference"] == pytest.approx(difference, abs=1e-6)
        assert f"minus F1 without: {results['f1_difference']['difference']:+.4f}" in printed


@pytest.mark.slow
def test_only_the_second_arm_depends_on_the_loss(demo_runs):
    def weights(loss, arm):
        (path,) = demo_runs[loss][3].glob(f"{arm}/*.ckpt")
        return torch.load(path, weights_only=False)["state_dict"]

    _, plain, _, _ = demo_runs["none"]
    loss = "minimum-risk"
    assert [{name: row[name] for name in plain[0]} for row in demo_runs[loss][1]] == plain
    for arm in ("shared-start-with-cross-entropy", "cross-entropy-goes-on"):
        torch.testing.assert_close(weights(loss, arm), weights("none", arm), rtol=0, atol=0)
    alone, joined = weights(loss, "cross-entropy-goes-on"), weights(loss, "*joins")
    assert any((alone[name] - joined[name]).abs().max() > 1e-6 for name in alone)


@pytest.mark.parametrize(
    ("arguments", "is_enough"),
    [([], True), (["--train-pairs", "0"], False), (["--train-pairs", "41"], False), (["--eval-pairs", "41"], False)],
)
def test_large_packages_are_read_only_for_more_pairs(monkeypatch, tmp_path, arguments, is_enough):
    """Stopped when the texts are there."""
    read = []
    pairs = [DocstringPair("a", "b", "c")] * 40

    def load(packages=DEFAULT_PACKAGES, verbose=False):
        read.append(packages)
        return pairs, pairs

    def stop(name):
        raise InterruptedError

    monkeypatch.setattr(summarize_docstrings, "load_corpus", load)
    monkeypatch.setattr(summarize_docstrings, "load_generator", stop)
    with pytest.raises(InterruptedError):
        summarize_docstrings.main([*SMALL, *arguments, "--output", str(tmp_path)])
    assert read == ([FEWER_PACKAGES] if is_enough else [FEWER_PACKAGES, DEFAULT_PACKAGES])
    assert not {"torch", "transformers"} & set(FEWER_PACKAGES)


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_has_a_default_weight(loss):
    assert summarize_docstrings.parse_options(["--loss", loss]).weight == WEIGHTS[loss]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "none", "--weight", "1"], "--weight 1.0 has no effect with --loss none"),
        (["--weight", "-1"], "finite number of at least 0, got -1.0"),
        (["--loss", "self-critical", "--weight", "nan"], "finite number of at least 0, got nan"),
        (["--loss", "hard"], "invalid choice: 'hard'"),
        (["--eval-pairs", "5"], "--eval-pairs must be at least 6, for a test of the difference, got 5"),
    ],
)
def test_demo_refuses_what_makes_no_sense(arguments, message, capsys):
    with pytest.raises(SystemExit):
        summarize_docstrings.main(arguments)
    assert message in capsys.readouterr().err


def demo_on_a_rank(rank, arguments, cache, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), NODE_RANK="0")
    os.environ["XDG_CACHE_HOME"] = cache
    return summarize_docstrings.main(arguments)["scores"]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("corpus_cache")
def test_demo_on_two_devices(generator, encoder, bert_score_f1, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [*SMALL, "--loss", "self-critical", "--generator", generator, "--devices", "2"]
    arguments += ["--output", str(tmp_path / "output")]
    scores, other = run_ranks(demo_on_a_rank, 2, arguments, os.environ["XDG_CACHE_HOME"], port)
    assert scores == other == json.loads((tmp_path / "output" / "results.json").read_text())["scores"]
    assert [row["steps"] for row in scores.values()] == [0, 3, 3]
    assert list(scores)[2] == ARMS["self-critical"]
    # Each device scored half of what the untrained model says here.
    held_out = summarize_docstrings.sample_pairs(load_corpus()[1], SIZES["eval-pairs"], 0)
    module = Summarizer(*load_generator(generator), encoder, learning_rate=1e-3)
    collate = Collate(module.tokenizer, module.model.config.decoder_start_token_id)
    texts = module.summarize(collate(list(enumerate(held_out))))
    f1 = bert_score_f1(texts, [pair.summary for pair in held_out]).mean().item()
    assert scores["before training"]["f1"] == pytest.approx(f1, abs=1e-6)
