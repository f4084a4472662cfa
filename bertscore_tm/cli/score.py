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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.joined_files import FileOptions, Systems, read_corpus
from bertscore_tm.cli.options import ScoringChoice
from bertscore_tm.utilities.files import expand_home
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.cli.resume import Session
    from bertscore_tm.cli.scoring import ScoredSystems


@dataclass(frozen=True)
class ScoreOptions:
    """What the command scores, and what it prints.

    Args:
        files: the files of the texts.
        candidate_text: a single text instead of files. ``None`` with files.
        reference_texts: references of the single text. ``None`` with files.
        scoring: what changes the scores.
        confidence: coverage of the intervals. ``None`` for no intervals.
        per_segment: whether the scores of each pair are printed.
        num_worst: number of pairs with the lowest F1 to print. ``None`` to print none.
        verbose: whether the progress is shown if standard error is not a terminal.
    """

    files: FileOptions
    candidate_text: str | None
    reference_texts: list[str] | None
    scoring: ScoringChoice
    confidence: float | None
    per_segment: bool
    num_worst: int | None
    verbose: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ScoreOptions:
        """Return the options that the arguments give."""
        scoring = ScoringChoice.of(arguments)
        # bert-score reads the table only if rescaling is requested too.
        if scoring.rescale is True and arguments.baseline_path is not None:
            scoring = replace(scoring, rescale=arguments.baseline_path)
        confidence = arguments.confidence
        if confidence is None and arguments.group_column is not None:
            # The table of the groups shows intervals, so they need a coverage.
            confidence = 0.95
        return cls(
            files=FileOptions.of_one_system(arguments),
            candidate_text=arguments.candidate_text,
            reference_texts=arguments.reference_text,
            scoring=scoring,
            confidence=confidence,
            per_segment=arguments.per_segment,
            num_worst=arguments.worst,
            verbose=arguments.verbose,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = options.add_file_arguments(parser)
    group.add_argument("--candidate-text", metavar="TEXT", help="a single text to score, instead of files")
    group.add_argument(
        "--reference-text",
        metavar="TEXT",
        action="append",
        help="reference of --candidate-text; repeat for several references",
    )
    options.add_source_arguments(group)
    options.add_scoring_arguments(parser)
    group = options.add_output_arguments(parser, (".txt", ".json", ".tsv", ".csv"))
    group.add_argument(
        "--per-segment",
        action="store_true",
        help="also print the scores of each pair. Pairs and references count from 1, except in JSON arrays",
    )
    group.add_argument(
        "--worst",
        type=options.positive,
        metavar="N",
        help="also print the N pairs with the lowest F1 and their texts, the lowest first",
    )
    options.add_report_argument(group)
    options.add_confidence_argument(group, None)
    options.add_label_arguments(group)
    group.add_argument(
        "-v", "--verbose", action="store_true", help="show the progress on standard error even if it is not a terminal"
    )
    _add_bert_score_options(parser)


def _add_bert_score_options(parser: argparse.ArgumentParser) -> None:
    """Accept the options of the ``bert-score`` command too, without listing them."""
    add_hidden = partial(parser.add_argument, help=argparse.SUPPRESS)
    add_hidden("--cand", dest="candidates", type=expand_home)
    add_hidden("--ref", dest="references", nargs="+", action="extend", type=expand_home)
    add_hidden("-s", "--seg_level", dest="per_segment", action="store_true")
    add_hidden("--rescale_with_baseline", dest="rescale", action="store_true")
    add_hidden("--baseline_path", type=expand_home)
    add_hidden("--use_fast_tokenizer", action="store_true")
    for name in ("--num_layers", "--batch_size", "--nthreads"):
        add_hidden(name, type=int)


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Score files and print the result."""
    command = ScoreOptions.of(arguments)
    _warn_of_unused(arguments)
    target = session.output
    if target.suffix in (".tsv", ".csv") and not command.per_segment:
        message = f"argument --output: a {target.suffix} file lists the scores of each pair. Add --per-segment"
        raise CommandError(message)
    # The web page shows intervals, even if the command prints none.
    needs_statistics = command.confidence is not None or target.report is not None
    systems = session.ranks.run_on_first(lambda: _read(command, needs_statistics=needs_statistics))

    # Import torch and transformers after the files are read, so that errors in files are reported soon.
    from bertscore_tm.cli.scoring import score_systems

    scored = score_systems(session, command.scoring, systems, verbose=command.verbose)
    if scored is None:
        # The other ranks are done, because only the first one has the scores and prints.
        return
    document = _describe(scored, command)
    summary = _format_summary(document)
    if target.suffix == ".json":
        if command.per_segment:
            # Write lists of numbers, because an object per pair would repeat the names and be several times as large.
            document["segments"] = _describe_segments(scored)
        results = [(output.to_json(document), target.path)]
    elif target.suffix == ".csv":
        # CSV has no comments, so the summary is printed.
        results = [(_format_table(scored, separator=","), target.path), (summary, None)]
    elif command.per_segment:
        # pandas skips the summary with comment="#".
        comments = "".join(f"# {line}\n" for line in summary.splitlines())
        results = [(comments + _format_table(scored, separator="\t"), target.path)]
    else:
        results = [(summary, target.path)]
    output.write_results(results, partial(output.write_report, scored, target))


def _warn_of_unused(arguments: argparse.Namespace) -> None:
    """Warn of options of the ``bert-score`` command that have no effect here."""
    # nthreads and use_fast_tokenizer change how bert-score computes, but not its scores.
    unused = []
    if arguments.nthreads is not None:
        unused.append("--nthreads")
    if arguments.use_fast_tokenizer:
        unused.append("--use_fast_tokenizer")
    if unused:
        warn_user(f"{', '.join(unused)}: no effect here. Remove unused options")


def _read(command: ScoreOptions, *, needs_statistics: bool) -> Systems:
    """Read the texts from files, or from the arguments of a single pair."""
    files = command.files
    if needs_statistics:
        from bertscore_tm.statistics import scipy_stats

        # Report that scipy is missing before the texts are scored.
        scipy_stats()
    elif files.document_column is not None:
        message = f"argument --document-column: {files.document_column} changes intervals only"
        raise CommandError(f"{message}. Give --confidence 0.95 too, or remove it")
    candidate = command.candidate_text
    references = command.reference_texts
    has_files = any([files.candidates, files.references, files.sources, files.group_column])
    if candidate is not None and references is not None and not has_files:
        return Systems({"candidates": [candidate]}, [references])
    if candidate is not None or references is not None or not files.candidates:
        remedy = "Give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT"
        raise CommandError(f"files or texts are missing, or both are given. {remedy}")
    return read_corpus(files).read(*files.candidates)


def _describe(scored: ScoredSystems, command: ScoreOptions) -> dict[str, Any]:
    """Return the JSON document."""
    document = _summarize(scored, command.confidence)
    groups = []
    for label, part in scored.parts().items():
        groups.append({"group": label, **_summarize(part, command.confidence)})
    if groups:
        document["groups"] = groups
    document |= output.describe_pairing(scored.systems.paired_by)
    document["signature"] = str(scored.signature)
    if command.num_worst is not None:
        f1 = scored.scores_of_first[output.SCORE_NAMES.index("f1")]  # (texts,)
        worst = []
        for row in scored.worst(command.num_worst):
            # Rows are counted from 1, like the lines of a file.
            worst.append({"row": row + 1, "f1": f1[row].item(), **scored.describe_texts(row)})
        document["worst"] = worst
    return document


def _describe_segments(scored: ScoredSystems) -> dict[str, Any]:
    """Return the ids, scores and best references of all pairs, by their keys in JSON."""
    segments = dict(zip(output.SCORE_NAMES, scored.scores_of_first.tolist(), strict=True))
    segments["best_reference"] = scored.best_reference_of_first.tolist()
    keys = scored.systems.keys
    if keys is not None:
        # The ids come first, as in the table.
        segments = {keys.name_in(segments): keys.values, **segments}
    return segments


def _summarize(scored: ScoredSystems, confidence: float | None) -> dict[str, Any]:
    """Return the means, the counts and, with a confidence, the intervals, by their keys in JSON."""
    # Compute means in float64, because those of many scores in float32 would differ in the last printed digit.
    scores = scored.scores_of_first.double()  # (3, texts)
    document: dict[str, Any] = dict(zip(output.SCORE_NAMES, scores.mean(-1).tolist(), strict=True))
    if confidence is not None:
        from bertscore_tm.statistics import mean_interval

        lows, highs = mean_interval(scores, confidence, bounds=scored.settings.bounds, groups=scored.systems.documents)
        for number, name in enumerate(output.SCORE_NAMES):
            document[f"{name}_low"] = lows[number].item()
            document[f"{name}_high"] = highs[number].item()
        document["confidence"] = confidence
        document["num_documents"] = scored.systems.num_documents
    document["num_candidates"] = scores.shape[-1]
    document["num_references"] = scored.num_references
    return document


def _format_summary(document: dict[str, Any]) -> str:
    has_intervals = "confidence" in document
    cells = []
    for name, label in output.SCORE_LABELS.items():
        cell = f"{label} {document[name]:.4f}"
        if has_intervals:
            cell += f" {output.format_interval(document[f'{name}_low'], document[f'{name}_high'])}"
        cells.append(cell)
    lines = ["  ".join(cells)]
    if has_intervals:
        line = f"{100 * document['confidence']:g}% intervals of the means"
        if document["num_documents"] is not None:
            line += f" from {output.format_count(document['num_documents'], 'document')}"
        lines.append(line)
    lines.append(f"{output.format_counts(document, ['candidate', 'reference'])}, {output.format_pairing(document)}")
    lines.append(f"signature: {document['signature']}")
    if "groups" in document:
        lines.append(_format_groups(document))
    for pair in document.get("worst", ()):
        lines.append(f"\nrow {pair['row']}, F1 {pair['f1']:.4f}\n{output.format_texts(pair)}")
    return "\n".join(lines) + "\n"


def _format_groups(document: dict[str, Any]) -> str:
    interval = f"{100 * document['confidence']:g}% interval of F1"
    rows = [["group", "texts", *output.SCORE_LABELS.values(), interval]]
    for group in document["groups"]:
        means = [f"{group[name]:.4f}" for name in output.SCORE_NAMES]
        ends = output.format_interval(group["f1_low"], group["f1_high"])
        rows.append([group["group"], str(group["num_candidates"]), *means, ends])
    return output.format_rows(rows).rstrip("\n")


def _format_table(scored: ScoredSystems, separator: str) -> str:
    """Return a header, and a line per candidate with its scores, and with its id and best reference if there are any.

    The best reference is listed if a text has several.
    """
    best = scored.best_reference_of_first  # (texts,)
    # A text with one reference besides blank ones has an index above 0 if a blank one precedes it.
    has_choice = scored.num_references > len(best) or bool(best.any())
    header = ["segment", "layer", *output.SCORE_NAMES]
    if has_choice:
        header.append("best_reference")
    keys = scored.systems.keys
    if keys is not None:
        header.insert(0, keys.name_in(header))
    table = io.StringIO()
    writer = csv.writer(table, delimiter=separator, lineterminator="\n")
    writer.writerow(header)
    # Read arrays row by row, because lists of the scores of a large corpus would take ten times the memory.
    rows = zip(scored.scores_of_first.T.numpy(), best.numpy(), strict=True)
    for number, (scores, best_reference) in enumerate(rows):
        cells = [str(number + 1), str(scored.settings.encoder.num_layers)]
        cells += [f"{score:.6f}" for score in scores]
        if has_choice:
            cells.append(str(best_reference + 1))
        if keys is not None:
            cells.insert(0, str(keys.values[number]))
        writer.writerow(cells)
    return table.getvalue()
