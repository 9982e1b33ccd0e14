"""A recording to pieces with speaker embeddings, in one process: as Hocket does it, or straightforwardly with the same models.

    python -m benchmarks.cut_stage '{"way": "hocket", "audio": F, "subtitles": F, "threads": 1, "vectors": F}'

The straightforward way holds the whole recording, calls the voice activity detection for each 32 ms, makes the masked mel
spectrogram of every window and speaker, and embeds those with enough speech one by one. The process prints one JSON line with
the seconds that the work took without loading the models, what was found, and its peak memory; the pieces' embeddings go to
`vectors`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulations.usage import peak_bytes
from tokenizer.audio import read_audio
from tokenizer.audio_source import AudioSource
from tokenizer.recordings.cue_zones import settle_cues, snap, speech_in, widen
from tokenizer.recordings.diarise import Piece, RecordingTools, cut_recording
from tokenizer.recordings.features import HOP, N_MELS, SAMPLE_RATE
from tokenizer.recordings.pieces import PieceSettings, Unit, cut_pieces
from tokenizer.recordings.subtitles import Cue, read_subtitles
from tokenizer.recordings.vad import CHUNK, SpeechDecider
from tokenizer.recordings.windows import LEVEL, WINDOW, WindowSettings, activity, clean_frames


def straightforward_bytes(seconds: float, speakers: int) -> int:
    """What the masked windows of every speaker take: [windows, speakers, 160, 40] of float32."""
    return int(seconds * 100 / WindowSettings().step) * speakers * WINDOW * N_MELS * 4


def straightforward(audio: Path, cues: Sequence[Cue], tools: RecordingTools) -> list[Piece]:
    """Pieces of a recording whose cues all name their speaker, with everything in memory."""
    from resemblyzer.audio import wav_to_mel_spectrogram

    samples = read_audio(AudioSource(audio), SAMPLE_RATE)
    spans = _speech(samples, tools)
    zones = widen(settle_cues(cues, SAMPLE_RATE), SAMPLE_RATE)
    names = sorted({zone.speaker or "" for zone in zones})
    heard = [
        (max(zone.start, start) // HOP, min(zone.stop, stop) // HOP, names.index(zone.speaker or ""))
        for zone in zones
        for start, stop in spans
        if start < zone.stop and stop > zone.start
    ]
    settings = WindowSettings()
    full = activity(0, len(samples) // HOP + 1, heard, len(names))  # [T, S]
    clean = clean_frames(full, settings.margin)
    starts = range(0, max(1, len(full) - WINDOW), settings.step)
    crops = np.zeros((len(starts), len(names), WINDOW, N_MELS), np.float32)
    enough = np.zeros((len(starts), len(names)), bool)
    for n, start in enumerate(starts):
        for s in range(len(names)):
            mask = clean[start : start + WINDOW, s]
            mask = mask if mask.sum() >= settings.min_clean else full[start : start + WINDOW, s]
            if mask.sum() >= settings.min_frames:
                wave = samples[start * HOP : (start + WINDOW) * HOP]
                mel = wav_to_mel_spectrogram(wave)[: len(mask)]
                power = np.square(wave[: len(mask) * HOP]).mean()
                crops[n, s, : len(mel)] = mel * mask[: len(mel), None] * (LEVEL / max(power, 1e-12))
                enough[n, s] = True
    vectors = np.zeros((len(starts), len(names), 256), np.float32)
    with torch.inference_mode():
        for n, s in zip(*np.nonzero(enough), strict=True):
            vectors[n, s] = tools.encoder.model(torch.from_numpy(crops[n, s][None]))[0].numpy()
    units = []
    for zone in snap(zones, spans, SAMPLE_RATE):
        units.append(Unit(*speech_in(zone, spans), zone.speaker or "", zone.text))
    middles = np.array(starts) * HOP + WINDOW * HOP // 2
    pieces = []
    for cut in cut_pieces(units, len(samples), SAMPLE_RATE, PieceSettings()):
        speaker = names.index(cut.speaker)
        inside = (middles >= cut.start) & (middles < cut.stop) & enough[:, speaker]
        own = vectors[inside, speaker] if inside.any() else vectors[enough[:, speaker], speaker]
        mean = own.mean(axis=0) if len(own) else np.zeros(256, np.float32)
        length = float(np.linalg.norm(mean))
        embedding = mean / length if length > 0 else None
        pieces.append(Piece(cut.start / SAMPLE_RATE, cut.stop / SAMPLE_RATE, cut.speaker, cut.text, embedding))
    return pieces


def _speech(samples: NDArray[np.float32], tools: RecordingTools) -> list[tuple[int, int]]:
    """Spans of speech, the model called for each chunk as its package shows."""
    model: Any = tools.vad._model
    model.reset_states()
    padded = np.pad(samples, (0, -len(samples) % CHUNK))
    probabilities = []
    with torch.inference_mode():
        for start in range(0, len(padded), CHUNK):
            probabilities.append(float(model(torch.from_numpy(padded[start : start + CHUNK]), SAMPLE_RATE)))
    decider = SpeechDecider()
    return decider.push(probabilities) + decider.finish()


def main() -> None:
    """Do the work once and print what it took."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(int(order["threads"]))
    cues = read_subtitles(Path(order["subtitles"]))
    tools = RecordingTools.load()
    if order["way"] == "straightforward":
        import resemblyzer.audio as library

        library.wav_to_mel_spectrogram(np.zeros(SAMPLE_RATE, np.float32))  # the first call is slow for both: it is not timed
    tools.encoder.embed(torch.zeros(tools.encoder.batch_size, WINDOW, N_MELS))
    started = time.perf_counter()
    if order["way"] == "straightforward":
        pieces = straightforward(Path(order["audio"]), cues, tools)
    else:
        pieces = cut_recording(AudioSource(Path(order["audio"])), tools, cues=cues)
    seconds = time.perf_counter() - started
    transcribed = [piece for piece in pieces if piece.text is not None]
    vectors = np.stack([np.zeros(256, np.float32) if piece.embedding is None else piece.embedding for piece in transcribed])
    np.save(order["vectors"], vectors, allow_pickle=False)
    peak = peak_bytes()
    texts = [piece.text for piece in transcribed]
    print(json.dumps({"seconds": seconds, "pieces": len(pieces), "texts": texts, "peak_rss_bytes": peak}))


if __name__ == "__main__":
    main()
