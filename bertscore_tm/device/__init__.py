"""What depends on the processor: memory, oneDNN, precision, locks and switches of the process."""
