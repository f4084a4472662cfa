"""Score candidate texts against references: precision, recall and F1, as means or for each pair.

Examples::

    bertscore-tm score hyps.txt refs.txt --language en
    bertscore-tm score -c hyps.txt -r refs.txt refs2.txt --idf --per-segment
    bertscore-tm score pairs.jsonl --json --output scores.json
    bertscore-tm score hyps.txt refs.txt --sources src.txt --worst 5
    torchrun --nproc-per-node 4 -m bertscore_tm.cli score hyps.txt refs.txt
"""

from __future__ import annotations

import argparse
import csv
import io
from functools import partial
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.joined_files import FileOptions, Systems, read_corpus
from bertscore_tm.cli.ranks import RankGroup
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.cli.scoring import ScoredSystems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = options.add_file_arguments(parser)
    group.add_argument("--candidate-text", metavar="TEXT", help="a single text to score, instead of files")
    help = "reference of --candidate-text; repeat for several references"
    group.add_argument("--reference-text", metavar="TEXT", action="append", help=help)
    options.add_source_arguments(group)
    options.add_scoring_arguments(parser)
    group = options.add_output_arguments(parser, (".txt", ".json", ".tsv", ".csv"))
    help = "also print the scores of each pair; pairs and references count from 1, except in JSON arrays"
    group.add_argument("--per-segment", action="store_true", help=help)
    help = "also print the N pairs with the lowest F1 and their texts, the lowest first"
    group.add_argument("--worst", type=options.positive, metavar="N", help=help)
    options.add_report_argument(group)
    options.add_confidence_argument(group, None)
    options.add_label_arguments(group)
    help = "show the progress on standard error even if it is not a terminal"
    group.add_argument("-v", "--verbose", action="store_true", help=help)
    _add_bert_score_options(parser)


def _add_bert_score_options(parser: argparse.ArgumentParser) -> None:
    """Accept the options of the ``bert-score`` command too, without listing them."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--cand", dest="candidates")
    add("--ref", dest="references", nargs="+", action="extend")
    add("-s", "--seg_level", dest="per_segment", action="store_true")
    add("--rescale_with_baseline", dest="rescale", action="store_true")
    add("--baseline_path")
    add("--use_fast_tokenizer", action="store_true")
    for name in ("--num_layers", "--batch_size", "--nthreads"):
        add(name, type=int)


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Score files and print the result."""
    unused = [f"--{name}" for name in ("nthreads", "use_fast_tokenizer") if name in arguments]
    if unused:
        warn_user(f"{', '.join(unused)}: no effect here (see bertscore-tm score --help)")
    if arguments.rescale is True:
        arguments.rescale = getattr(arguments, "baseline_path", True)
    options.take_files(arguments)
    suffix = arguments.suffix
    if suffix in (".tsv", ".csv") and not arguments.per_segment:
        raise CommandError(f"argument --output: a {suffix} file lists the scores of each pair: add --per-segment")
    if arguments.group_column is not None and arguments.confidence is None:
        arguments.confidence = 0.95
    systems = ranks.run_on_first(lambda: _read(arguments))

    from bertscore_tm.cli.encoder import ScoringChoice, take_hash
    from bertscore_tm.cli.scoring import score_systems

    take_hash(arguments)
    choice = ScoringChoice.of(arguments)
    scored = score_systems(ranks, choice, systems, arguments.unfinished, verbose=arguments.verbose)
    if scored is None:
        return
    document = _summarize(scored, arguments.confidence)
    if parts := scored.parts():
        summaries = {label: _summarize(part, arguments.confidence) for label, part in parts.items()}
        document["groups"] = [{"group": label, **group} for label, group in summaries.items()]
    document |= output.describe_pairing(systems.paired_by)
    document["signature"] = str(scored.signature)
    scores, best = scored.scores[:, 0, :, 0], scored.best_reference[0, :, 0]
    if arguments.worst is not None:
        worst = {i: scored.describe_texts(i) for i in scored.worst(arguments.worst)}
        document["worst"] = [{"row": i + 1, "f1": scores[2, i].item(), **texts} for i, texts in worst.items()]
    summary = _format_summary(document)
    if suffix == ".json":
        if arguments.per_segment:
            segments = dict(zip(output.SCORE_NAMES, scores.tolist(), strict=True))
            segments["best_reference"] = best.tolist()
            if systems.keys is not None:
                segments = {systems.keys.name_in(segments): systems.keys.values, **segments}
            document["segments"] = segments
        summary = output.to_json(document)
    elif arguments.per_segment and suffix != ".csv":
        summary = "".join(f"# {line}\n" for line in summary.splitlines())
        summary += _format_table(scored, best, document, "\t")
    if suffix == ".csv":
        results = [(_format_table(scored, best, document, ","), arguments.output), (summary, None)]
    else:
        results = [(summary, arguments.output)]
    output.write_results(results, partial(output.write_report, scored, arguments.report, arguments.title))


def _read(arguments: argparse.Namespace) -> Systems:
    if arguments.confidence is not None or arguments.report is not None:
        from bertscore_tm.statistics import scipy_stats

        scipy_stats()
    elif arguments.document_column is not None:
        raise CommandError("argument --document-column: it changes intervals only, so give --confidence too")
    has_files = any(vars(arguments)[name] for name in ("candidates", "references", "sources", "group_column"))
    num_texts = (arguments.candidate_text is not None) + (arguments.reference_text is not None)
    if num_texts == 2 and not has_files:
        return Systems({"candidates": [arguments.candidate_text]}, [arguments.reference_text])
    if num_texts or arguments.candidates is None:
        raise CommandError("give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT")
    return read_corpus(FileOptions.of(arguments), [arguments.candidates]).read(arguments.candidates)


def _summarize(scored: ScoredSystems, confidence: float | None) -> dict[str, Any]:
    """Return the means and, if requested, their intervals, and counts, by their keys in JSON."""
    scores, documents = scored.scores[:, 0, :, 0].double(), scored.systems.documents
    document: dict[str, Any] = dict(zip(output.SCORE_NAMES, scores.mean(-1).tolist(), strict=True))
    if confidence is not None:
        from bertscore_tm.statistics import mean_interval

        ends = mean_interval(scores, confidence, bounds=scored.settings.bounds, groups=documents)
        for name, low, high in zip(output.SCORE_NAMES, *(end.tolist() for end in ends), strict=True):
            document |= {f"{name}_low": low, f"{name}_high": high}
        document["confidence"] = confidence
        document["num_documents"] = None if documents is None else len(set(documents))
    document |= {"num_candidates": scores.shape[-1], "num_references": scored.num_references}
    return document


def _format_summary(document: dict[str, Any]) -> str:
    cells = [f"{label} {document[name]:.4f}" for name, label in output.SCORE_LABELS.items()]
    counts = output.format_counts(document, ("candidate", "reference"))
    lines = [f"{counts}, {output.format_pairing(document)}", f"signature: {document['signature']}"]
    if "confidence" in document:
        for i, name in enumerate(output.SCORE_NAMES):
            cells[i] += f" {output.format_interval(document[f'{name}_low'], document[f'{name}_high'])}"
        documents = document["num_documents"]
        source = "" if documents is None else f" from {output.format_count(documents, 'document')}"
        lines.insert(0, f"{100 * document['confidence']:g}% intervals of the means{source}")
    if "groups" in document:
        rows = [["group", "texts", *output.SCORE_LABELS.values(), f"{100 * document['confidence']:g}% interval of F1"]]
        for group in document["groups"]:
            row = [group["group"], str(group["num_candidates"]), *(f"{group[name]:.4f}" for name in output.SCORE_NAMES)]
            rows.append([*row, output.format_interval(group["f1_low"], group["f1_high"])])
        lines.append(output.format_rows(rows).rstrip("\n"))
    for pair in document.get("worst", ()):
        lines.append(f"\nrow {pair['row']}, F1 {pair['f1']:.4f}\n{output.format_texts(pair)}")
    return "\n".join(["  ".join(cells), *lines]) + "\n"


def _format_table(scored: ScoredSystems, best: Tensor, document: dict[str, Any], separator: str) -> str:
    """Return a header, and a line per candidate with its id, its scores and, of several, its best reference."""
    has_choice = document["num_references"] > document["num_candidates"] or bool(best.any())
    header = ["segment", "layer", *output.SCORE_NAMES]
    if has_choice:
        header.append("best_reference")
    keys = scored.systems.keys
    if keys is not None:
        header.insert(0, keys.name_in(header))
    table = io.StringIO()
    writer = csv.writer(table, delimiter=separator, lineterminator="\n")
    writer.writerow(header)
    # Arrays are read row by row: lists of the scores of a large corpus would take ten times the memory.
    rows = zip(scored.scores[:, 0, :, 0].T.numpy(), best.numpy(), strict=True)
    for number, (scores, best_reference) in enumerate(rows):
        cells = [str(number + 1), str(scored.settings.encoder.num_layers), *(f"{score:.6f}" for score in scores)]
        if has_choice:
            cells.append(str(best_reference + 1))
        if keys is not None:
            cells.insert(0, str(keys.values[number]))
        writer.writerow(cells)
    return table.getvalue()
