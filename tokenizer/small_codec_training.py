"""Training of the small codec on folders of recordings: what `hocket codec train` runs.

No adversary: the loss is a distance of log-mel spectra at several resolutions, a distance of magnitudes, and the
commitment of the latents to their codes. The quantiser stays off for the first part of the training, its
codebooks then start from k-means over the latents and follow them by moving averages (van den Oord et al., "Neural
Discrete Representation Learning", 2017, appendix); codes that are hardly used start again at a latent of the batch.

Every random draw is a function of (seed, step), so a training is repeated exactly by the same build on the same machine
with the same number of threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import Code, HocketError
from tokenizer.audio import audio_files, read_audio
from tokenizer.small_codec import FLOOR, SmallCodec, SmallCodecConfig, SmallCodecNet, build_net, mel_matrix, nearest

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Args:
        batch: crops a step.
        crop_s: length of a crop.
        learning_rate: of AdamW after the warm-up; flat to half of the steps, then a cosine to 1 %.
        warmup_steps: over which the learning rate rises.
        quantiser_from: share of the steps before which the quantiser is off.
        books: numbers of codebooks, one of which is drawn each step; None is all of them and half.
        kmeans_batches: batches whose latents the codebooks start from.
        decay: of the moving averages that the codebooks are.
        commitment, waveform: weights of these losses; the spectral one has weight 1.
    """

    batch: int = 8
    crop_s: float = 1.0
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    quantiser_from: float = 0.3
    books: tuple[int, ...] | None = None
    kmeans_batches: int = 30
    decay: float = 0.97
    commitment: float = 0.25
    waveform: float = 0.2


@dataclass(frozen=True)
class TrainingReport:
    """What a training did: voices with their minutes, and the mean spectral loss of the first and last tenth of the steps."""

    minutes: dict[str, float]
    first_loss: float
    last_loss: float


class Voices:
    """Crops of the recordings of several folders, one folder a voice.

    A voice is drawn with the square root of its duration as weight, so that a small voice counts without being learnt by
    heart; within a voice a recording is drawn by its duration, since a draw by number would favour one-word clips.

    Args:
        folders: of recordings; all are kept in memory as 16 bit.
    """

    def __init__(self, folders: Sequence[Path], sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.clips: list[list[np.ndarray]] = []
        self.minutes: dict[str, float] = {}
        for folder in folders:
            files = audio_files(folder)
            if not files:
                remedy = "give a folder of wav, flac or ogg files"
                raise HocketError(Code.CORPUS_UNREADABLE, f"{folder} holds no recordings", remedy=remedy)
            clips = [read_audio(path, sample_rate) for path in files]
            self.clips.append([np.round(clip.clip(-1, 1) * 32767).astype(np.int16) for clip in clips])
            self.minutes[str(folder)] = sum(map(len, clips)) / sample_rate / 60
        lengths = [np.array([len(clip) for clip in clips], dtype=np.float64) for clips in self.clips]
        weights = np.sqrt([length.sum() for length in lengths])
        self._voice = weights / weights.sum()
        self._clip = [length / length.sum() for length in lengths]

    def batch(self, draw: np.random.Generator, size: int, n_samples: int) -> np.ndarray:
        """Augmented crops float32 [size, n_samples]."""
        return np.stack([self._crop(draw, n_samples) for _ in range(size)])

    def _crop(self, draw: np.random.Generator, n_samples: int) -> np.ndarray:
        voice = draw.choice(len(self.clips), p=self._voice)
        clip = self.clips[voice][draw.choice(len(self.clips[voice]), p=self._clip[voice])]
        # Speed and pitch together stand in for more speakers than there are.
        source = n_samples if draw.random() < 0.5 else int(n_samples * draw.uniform(0.75, 1.25)) // 50 * 50
        crop = np.zeros(source, np.float32)
        start = int(draw.integers(0, max(1, len(clip) - source + 1)))
        piece = clip[start : start + source].astype(np.float32) / 32767
        at = int(draw.integers(0, source - len(piece) + 1))
        crop[at : at + len(piece)] = piece
        spectrum = np.fft.rfft(crop)
        if draw.random() < 0.5:
            # A smooth random tone control stands in for other microphones and rooms.
            gains = draw.uniform(-6, 6, size=6)
            spectrum *= 10 ** (np.interp(np.linspace(0, 5, len(spectrum)), np.arange(6), gains) / 20)
        bins = n_samples // 2 + 1
        kept = np.zeros(bins, np.complex128)
        kept[: min(bins, len(spectrum))] = spectrum[:bins]
        changed = np.fft.irfft(kept, n_samples) * n_samples / source
        peak = float(np.abs(changed).max())
        return np.asarray(changed * (0.8 * draw.uniform(0.3, 1.1) / max(peak, 1e-3)), dtype=np.float32)


class SpectralLoss(nn.Module):
    """Distance of spectra at four resolutions: L1 of log-mel (in nepers), and L1 of magnitudes relative to the target's."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self.sizes = [(256, 32), (512, 64), (1024, 80), (2048, 128)]
        for n_fft, n_mels in self.sizes:
            self.register_buffer(f"window{n_fft}", torch.hann_window(n_fft), persistent=False)
            self.register_buffer(f"mel{n_fft}", mel_matrix(sample_rate, n_fft, n_mels), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """Mean over resolutions, scalar, of two signals [B, N]."""
        total = made.new_zeros(())
        for n_fft, _ in self.sizes:
            mel = self.get_buffer(f"mel{n_fft}")
            with torch.no_grad():
                target = self._magnitude(wanted, n_fft)
                target_log = (target @ mel).clamp(min=FLOOR).log()
            magnitude = self._magnitude(made, n_fft)
            log_distance = ((magnitude @ mel).clamp(min=FLOOR).log() - target_log).abs().mean()
            distance = (magnitude - target).abs().mean() / target.mean().clamp(min=FLOOR)
            total = total + log_distance + distance
        return total / len(self.sizes)

    def _magnitude(self, wav: Tensor, n_fft: int) -> Tensor:
        frames = F.pad(wav, (n_fft // 2, n_fft // 2)).unfold(1, n_fft, n_fft // 4)  # [B, frames, n_fft]
        spectrum = torch.view_as_real(torch.fft.rfft(frames * self.get_buffer(f"window{n_fft}")))
        return spectrum.square().sum(-1).add(1e-9).sqrt()  # smooth at zero, where |.| has no gradient


class CodebookLearner:
    """Moves the codebooks of a net after its latents; nothing of it is kept in the trained codec."""

    def __init__(self, net: SmallCodecNet, decay: float) -> None:
        self.net = net
        self.decay = decay
        k, card, dim = net.codebooks.shape
        self.counts = torch.ones(k, card)
        self.sums = torch.zeros(k, card, dim)

    def go_on(self) -> None:
        """Follow the books as they are, those of a codec that is trained further."""
        self.sums = self.net.codebooks.clone()

    def start(self, latents: Tensor, draw: np.random.Generator) -> None:
        """Set each book by k-means over what the earlier ones leave of latents [N, D]."""
        residual = latents
        for book in range(len(self.net.codebooks)):
            centres = kmeans(residual, self.net.codebooks.shape[1], draw)
            self.net.codebooks[book] = centres
            codes = nearest(residual, centres)
            share = len(residual) / len(centres)
            self.counts[book] = torch.bincount(codes, minlength=len(centres)).float().clamp(min=1e-3 * share) / share
            self.sums[book] = centres * self.counts[book][:, None]
            residual = residual - centres[codes]

    def follow(self, latents: Tensor, codes: Tensor, draw: np.random.Generator) -> None:
        """One step of the averages with latents [N, D] that were given codes [N, K']."""
        residual = latents
        card = self.net.codebooks.shape[1]
        share = len(latents) / card
        for book in range(codes.shape[1]):
            code = codes[:, book]
            taken = self.net.codebooks[book][code]
            counts = torch.bincount(code, minlength=card).float() / share
            sums = torch.zeros_like(self.sums[book]).index_add_(0, code, residual) / share
            self.counts[book].mul_(self.decay).add_(counts, alpha=1 - self.decay)
            self.sums[book].mul_(self.decay).add_(sums, alpha=1 - self.decay)
            dead = torch.nonzero(self.counts[book] < 0.05)[:, 0]
            if len(dead):
                chosen = torch.from_numpy(draw.integers(0, len(residual), size=len(dead)))
                self.counts[book][dead] = 0.5
                self.sums[book][dead] = residual[chosen] * 0.5
            self.net.codebooks[book] = self.sums[book] / self.counts[book][:, None]
            residual = residual - taken


def kmeans(points: Tensor, n_centres: int, draw: np.random.Generator, *, rounds: int = 12) -> Tensor:
    """Centres [n_centres, D] of points [N, D]; an empty centre moves to a random point. N may be below n_centres."""
    centres = points[torch.from_numpy(draw.choice(len(points), n_centres, replace=len(points) < n_centres))].clone()
    for _ in range(rounds):
        codes = nearest(points, centres)
        counts = torch.bincount(codes, minlength=n_centres)
        sums = torch.zeros_like(centres).index_add_(0, codes, points)
        centres = sums / counts.clamp(min=1)[:, None]
        empty = torch.nonzero(counts == 0)[:, 0]
        if len(empty):
            centres[empty] = points[torch.from_numpy(draw.integers(0, len(points), size=len(empty)))]
    return centres


def rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """Learning rate at `step` as a share of the highest: linear warm-up, flat to the middle, a cosine to 1 % at the end."""
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    late = max(0.0, (step / max(1, steps) - 0.5) * 2)
    return warm * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * late)))


def train_codec(
    folders: Sequence[Path],
    out: Path,
    steps: int,
    seed: int,
    progress: Progress | None = None,
    *,
    config: SmallCodecConfig | None = None,
    settings: TrainingSettings | None = None,
    start: Path | None = None,
) -> TrainingReport:
    """Train a codec on the recordings of `folders` (one a voice) and write it to `out`.

    Args:
        folders: of recordings in any format and at any rate that libsndfile reads, searched with their subfolders.
        out: folder that gets config.json and model.safetensors.
        steps: of AdamW; 4000 and 3000 more gave the shipped codec from 167 minutes of speech.
        seed: of the weights and of all draws.
        progress: called after each step with (steps done, steps, spectral loss).
        start: folder of a codec to train further, its quantiser on from the first step; `config` is then not looked at.

    Raises:
        HocketError: CORPUS_UNREADABLE, AUDIO_UNREADABLE, CODEC_UNREADABLE, OPTION_INVALID (steps), NOT_FINITE (training
            diverged), DISK_FULL.
    """
    if steps < 1 or not folders:
        raise HocketError(Code.OPTION_INVALID, f"{steps} steps on {len(folders)} folders")
    settings = settings or TrainingSettings()
    net = build_net(config or SmallCodecConfig(), seed) if start is None else SmallCodec.load(start).net.requires_grad_(True)
    voices = Voices(folders, net.config.sample_rate)
    losses = _train(net.train(), voices, steps, seed, progress or _no_progress, settings, is_fresh=start is None)
    SmallCodec(net).save(out)
    tenth = max(1, steps // 10)
    return TrainingReport(voices.minutes, float(np.mean(losses[:tenth])), float(np.mean(losses[-tenth:])))


def _no_progress(step: int, steps: int, loss: float) -> None:
    """For callers that show nothing."""


def _train(
    net: SmallCodecNet, voices: Voices, steps: int, seed: int, progress: Progress, settings: TrainingSettings, *, is_fresh: bool
) -> list[float]:
    config = net.config
    n_samples = max(1, round(settings.crop_s * config.sample_rate / config.hop)) * config.hop
    books = settings.books or tuple({config.n_codebooks, max(1, config.n_codebooks // 2)})
    loss_of = SpectralLoss(config.sample_rate)
    learner = CodebookLearner(net, settings.decay)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, betas=(0.8, 0.95), weight_decay=0.01)
    quantised_from = int(settings.quantiser_from * steps) if is_fresh else 0
    if not is_fresh:
        learner.go_on()
    losses: list[float] = []
    for step in range(steps):
        draw = np.random.default_rng([seed, step])
        wav = torch.from_numpy(voices.batch(draw, settings.batch, n_samples))  # [B, N]
        if is_fresh and step == quantised_from:
            learner.start(_latents(net, voices, draw, settings, n_samples), draw)
        latents = net.encode(wav)  # [B, T, D]
        commitment = latents.new_zeros(())
        read = latents
        codes = None
        if step >= quantised_from:
            codes, quantised = net.quantise(latents, int(draw.choice(sorted(books))))
            commitment = F.mse_loss(latents, quantised)
            read = latents + (quantised - latents).detach()  # the decoder reads the codes, the encoder gets its gradient
        made = net.decode(read)
        spectral = loss_of(made, wav)
        loss = spectral + settings.commitment * commitment + settings.waveform * (made - wav).abs().mean()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate_factor(step, steps, settings.warmup_steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        if not bool(torch.isfinite(norm)):
            raise HocketError(Code.NOT_FINITE, f"the training diverged at step {step}", remedy="use another --seed")
        optimizer.step()
        if codes is not None:
            learner.follow(latents.detach().flatten(0, 1), codes.flatten(0, 1), draw)
        losses.append(float(spectral.detach()))
        progress(step + 1, steps, losses[-1])
    return losses


@torch.no_grad()
def _latents(net: SmallCodecNet, voices: Voices, draw: np.random.Generator, settings: TrainingSettings, n_samples: int) -> Tensor:
    """Latents [N, D] of several batches, from which the codebooks start."""
    batches = (voices.batch(draw, settings.batch, n_samples) for _ in range(settings.kmeans_batches))
    return torch.cat([net.encode(torch.from_numpy(batch)).flatten(0, 1) for batch in batches])
