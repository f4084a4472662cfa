"""Maps soft predictions over a generator's vocabulary to soft tokens of an encoder with another vocabulary."""
