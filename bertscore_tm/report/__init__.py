"""The HTML page of a run: data in, one file out."""

from bertscore_tm.report.report import Report, alignment_options

__all__ = ["Report", "alignment_options"]
