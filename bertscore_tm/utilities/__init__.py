"""Helpers for all folders: atomic file writes, warnings at the caller's line, the version. Imports no other folder."""
