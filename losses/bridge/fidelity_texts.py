"""Sentences on which a bridge between vocabularies is tried where the caller gives none."""

from __future__ import annotations

__all__ = ["FIDELITY_TEXTS"]

FIDELITY_TEXTS = (
    "The committee postponed its decision until the end of September.",
    "Heavy rain flooded several streets in the north of the city on Tuesday.",
    "She doesn't remember where she left her grandmother's keys.",
    "Prices rose by 3.4% last year, twice as fast as economists had expected.",
    "The function returns an empty list if the file cannot be opened.",
    "Researchers found that the vaccine protects children for at least five years.",
    "After the interview, the goalkeeper thanked his coach and left without a word.",
    "Mr. O'Neill bought 12 acres of farmland near Springfield in 1987.",
    "A small fire broke out in the kitchen, but nobody was injured.",
    "The new railway line will connect the airport with the old harbour.",
    "Turn off the power before you remove the cover of the machine.",
    "Both parties accused each other of breaking the ceasefire agreement.",
    "Biologists discovered an unknown species of butterfly in the rainforest.",
    "Why would anyone photograph such an uninteresting building?",
    "The unemployment rate fell slightly, according to the statistics office.",
    "He had been reading quietly by the window when the telephone rang.",
)
