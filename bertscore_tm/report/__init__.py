"""The HTML page of a run: data in, one file out."""

from bertscore_tm.report.report import Report

__all__ = ["Report"]
