"""Tests of bertscore-tm."""
