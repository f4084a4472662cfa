"""Devices: memory, oneDNN, precision, locks and switches of the process."""
