"""Corpora: the door to `tokenizer.corpora`, and the corpus that comes with Hocket.

A corpus is a folder in LJSpeech layout, a table (CSV, TSV, JSON lines, Parquet), a folder of recordings with texts or subtitles
beside them, WebDataset tars, or one long recording. Beside its clips a folder may have `heldout.txt` (ids that are never
trained on) and `corpus.json` (speaker, language, licence).
"""

from __future__ import annotations

from pathlib import Path

from tokenizer.corpora.layout import scan_corpus
from tokenizer.corpora.model import Clip, Corpus, Recording, Refusal, refusal_error

__all__ = ["Clip", "Corpus", "Recording", "Refusal", "default_corpus", "read_ljspeech", "refusal_error", "scan_corpus"]


def default_corpus() -> Path:
    """The folder of the corpus that comes with Hocket."""
    return Path(__file__).parent / "data" / "corpus-slt"


def read_ljspeech(folder: Path) -> list[Clip]:
    """The clips of a corpus in which every line has a recording and every recording a line.

    Raises:
        HocketError: CORPUS_UNREADABLE, CORPUS_TOO_SMALL, TEXT_AUDIO_MISMATCH or NO_PHONEMES with the ids concerned.
    """
    corpus = scan_corpus(folder)
    if corpus.refused:
        raise refusal_error(corpus.refused, len(corpus.clips) + len(corpus.refused))
    return corpus.clips
