"""Runnable examples for the package."""
