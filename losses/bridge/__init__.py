"""Maps a generator's vocabulary to the encoder's: soft tokens of the one as soft tokens of the other."""

from bertscore_tm.losses.bridge.vocabulary import VocabularyBridge

__all__ = ["VocabularyBridge"]
