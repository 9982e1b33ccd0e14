"""Speaker embeddings of many windows: batches made when their turn comes, on whatever device there is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenizer.devices import batch_size_for, free_bytes, is_out_of_memory, release_caches, run_in_halves
from tokenizer.recordings.extras import import_extra
from tokenizer.recordings.features import N_MELS
from tokenizer.recordings.windows import WINDOW, Block

DIM = 256
NAME = "resemblyzer-0.1.4"
BYTES_PER_WINDOW = 3 << 20  # gates and hidden states of 160 frames in three layers, with room to spare
AT_MOST = {"cpu": 32, "cuda": 1024, "mps": 256}  # windows a batch; on a CPU more are no faster (docs/measurements.md)
PROBE_COSINE = 0.99  # a device whose embeddings point elsewhere than the CPU's is not used

logger = logging.getLogger(__name__)

Sink = Callable[[NDArray[np.float32]], None]


class SpeakerEncoder:
    """Resemblyzer's VoiceEncoder (three LSTM layers, trained with GE2E, Wan et al. 2018), loaded by its own library.

    Args:
        device: "cpu", "cuda:0", "mps". One that cannot run the model, or not rightly, is replaced by the CPU; this is logged.
        batch_size: windows at a time; None: by the free memory of the device.
    """

    def __init__(self, device: str = "cpu", batch_size: int | None = None) -> None:
        package = import_extra("resemblyzer")
        self.model: nn.Module = package.VoiceEncoder(torch.device("cpu"), verbose=False).eval()
        self.device = self._usable(torch.device(device))
        if batch_size is None:
            at_most = AT_MOST.get(self.device.type, AT_MOST["cpu"])
            batch_size = batch_size_for(BYTES_PER_WINDOW, free_bytes(str(self.device)), at_most=at_most)
        self.batch_size = batch_size
        self._fits = batch_size  # windows that have fitted the memory so far

    def embed(self, crops: Tensor) -> Tensor:
        """Mel [B, 160, 40] on the encoder's device to embeddings [B, 256] of unit length (0 where the model finds nothing)."""
        model: Any = self.model
        with torch.inference_mode():
            _, (hidden, _) = model.lstm(crops)
            raw = torch.relu(model.linear(hidden[-1]))
            return raw / torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp_min(1e-12)

    def embed_in_parts(self, crops: Tensor) -> Tensor:
        """As `embed`, from any device and without fail for lack of memory: what does not fit is halved, now and from then on."""

        def too_large(error: BaseException) -> bool:
            found = is_out_of_memory(error)
            if found:
                self._fits = max(1, self._fits // 2)
                logger.warning("%d windows at a time do not fit the memory of %s", 2 * self._fits, self.device)
            return found

        parts: list[Tensor] = []
        while len(parts) < len(crops):
            rows = crops[len(parts) : len(parts) + self._fits]
            parts += run_in_halves(rows, lambda part: list(self.embed(part.to(self.device))), is_out_of_memory=too_large)
        return torch.stack(parts)

    def start(self, sink: Sink) -> EmbeddingRun:
        """A run over the blocks of one recording; `sink` is given the embeddings of all pairs, in order, a batch at a time."""
        return EmbeddingRun(self, sink)

    def _usable(self, device: torch.device) -> torch.device:
        if device.type == "cpu":
            return device
        probe = torch.rand((2, WINDOW, N_MELS), generator=torch.Generator().manual_seed(1))
        self.device = torch.device("cpu")
        expected = self.embed(probe)
        try:
            self.model.to(device)
            found = self.embed(probe.to(device)).cpu()
        except (RuntimeError, NotImplementedError, AssertionError) as error:  # torch's ways to say that a device is not there
            reason = str(error).splitlines()[0]
        else:
            if bool(((found * expected).sum(dim=1) > PROBE_COSINE).all()):
                return device
            reason = "its embeddings differ from the CPU's"
        logger.warning("speaker embeddings are computed on the CPU, not on %s: %s", device, reason)
        self.model.to("cpu")
        return torch.device("cpu")


class EmbeddingRun:
    """The embeddings of one recording's pairs. A batch is filled across blocks: nothing depends on the blocks' size."""

    def __init__(self, encoder: SpeakerEncoder, sink: Sink) -> None:
        self._size = encoder.batch_size
        self._lane: _Lane = _CudaLane(encoder, sink) if encoder.device.type == "cuda" else _DirectLane(encoder, sink)
        self._batch = self._lane.next_batch()
        self._filled = 0

    def push(self, block: Block) -> None:
        """Embed the pairs of a block; those that fill no batch wait for the next block's."""
        done = 0
        while done < len(block):
            taken = min(self._size - self._filled, len(block) - done)
            self._batch[self._filled : self._filled + taken] = block.crops(slice(done, done + taken))
            self._filled += taken
            done += taken
            if self._filled == self._size:
                self._launch()

    def finish(self) -> None:
        """Embed what is left and give the device's memory back."""
        if self._filled:
            self._launch()
        self._lane.drain()

    def _launch(self) -> None:
        self._lane.launch(self._filled)
        self._filled = 0
        self._batch = self._lane.next_batch()


class _Lane(Protocol):
    """The way of batches to a device and of embeddings back, in order."""

    def next_batch(self) -> NDArray[np.float32]:
        """Memory [batch size, 160, 40] to fill for the next launch."""

    def launch(self, rows: int) -> None:
        """Embed the first rows of the batch that was handed out last."""

    def drain(self) -> None:
        """Give what is still under way to the sink, and release caches."""


class _DirectLane:
    """CPU and MPS: each batch goes there, and its embeddings come back, before the next is made."""

    def __init__(self, encoder: SpeakerEncoder, sink: Sink) -> None:
        self._encoder, self._sink = encoder, sink
        self._batch = np.zeros((encoder.batch_size, WINDOW, N_MELS), np.float32)

    def next_batch(self) -> NDArray[np.float32]:
        return self._batch

    def launch(self, rows: int) -> None:
        self._sink(self._encoder.embed_in_parts(torch.from_numpy(self._batch[:rows])).cpu().numpy())

    def drain(self) -> None:
        release_caches(str(self._encoder.device))


class _CudaLane:
    """CUDA: two batches in pinned memory. One is filled while the other is copied on a stream of its own and computed.

    Every launch has the whole batch size, its last rows unused where it is not full: cuDNN would choose another
    algorithm with another workspace for a batch of another shape.
    """

    def __init__(self, encoder: SpeakerEncoder, sink: Sink) -> None:
        self._encoder, self._sink = encoder, sink
        shape = (encoder.batch_size, WINDOW, N_MELS)
        self._host = [torch.zeros(shape, pin_memory=True) for _ in range(2)]
        self._device = [torch.zeros(shape, device=encoder.device) for _ in range(2)]
        self._out = [torch.zeros((encoder.batch_size, DIM), pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._done = [torch.cuda.Event() for _ in range(2)]
        self._rows = [0, 0]  # of the launch under way in each
        self._copies = torch.cuda.Stream(encoder.device)
        self._place = 1
        torch.cuda.current_stream(encoder.device).synchronize()  # the zeros above are there before the other stream writes

    def next_batch(self) -> NDArray[np.float32]:
        self._place = 1 - self._place
        self._collect(self._place)
        batch: NDArray[np.float32] = self._host[self._place].numpy()
        return batch

    def launch(self, rows: int) -> None:
        place = self._place
        compute = torch.cuda.current_stream(self._encoder.device)
        with torch.cuda.stream(self._copies):
            self._device[place].copy_(self._host[place], non_blocking=True)
            self._copied[place].record(self._copies)
        compute.wait_event(self._copied[place])
        self._out[place].copy_(self._encoder.embed_in_parts(self._device[place]), non_blocking=True)
        self._done[place].record(compute)
        self._rows[place] = rows

    def drain(self) -> None:
        self._collect(1 - self._place)
        self._collect(self._place)
        release_caches(str(self._encoder.device))

    def _collect(self, place: int) -> None:
        """Wait for the launch under way in `place`, if any: its buffers are free then, on the host and on the device."""
        if self._rows[place]:
            self._done[place].synchronize()
            self._sink(self._out[place][: self._rows[place]].numpy().copy())
            self._rows[place] = 0


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Let CUDA round products to TF32 within: the embeddings' angles move less than those of two windows of one sentence.

    What was set before is set again at the end. Without such settings in this torch, nothing changes.
    """
    candidates: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "rnn", None))
    places = [place for place in candidates if hasattr(place, "fp32_precision")]
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "tf32"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
