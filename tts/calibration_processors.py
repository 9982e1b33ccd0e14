"""Passes computed as another kind of processor would: in a child process whose libraries may not use the newer instructions.

Which instructions torch, oneDNN and MKL take is decided once, when a process begins, by its environment. With narrower vectors
and without fused multiply-add they add in another order and round at other places, as the machines do that lack them.

The child, `python -m tts.calibration_processors`, reads a JSON line a job, {"config", "stage", "stages", "number", "dtype",
"tensors": path, "out": path}, and answers each by the line `done`; tensors travel in safetensors files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from common.errors import Code, HocketError
from protocol.tensor_files import read_tensors, write_tensors
from tts.batch import own_tensor
from tts.calibration_cases import SEED, Made, Work
from tts.calibration_ways import precision, threads
from tts.config import ModelConfig
from tts.replay import GRADIENT, HIDDEN, PassInput, replay_pass
from tts.stages import build_stage

PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "a processor with AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "a processor without AVX": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}
"""Names, and what tells the libraries of x86 to do as on such a machine; elsewhere the first line alone means something."""
_WEIGHT, _INPUT, _OURS, _GRADIENT = "weight.", "input.", "out.", "gradient."


class OtherProcessor:
    """A child that computes passes.

    Args:
        folder: for the files that go there and back.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tts.calibration_processors"], env=os.environ | environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, work: Work, dtype: str) -> Made:
        """Compute a pass there.

        Raises:
            HocketError: CHILD_FAILED.
        """
        inputs = work.inputs
        arrays = inputs.batch.arrays() if inputs.batch is not None else inputs.side.arrays()
        arrays |= {name: array for name, array in ((HIDDEN, inputs.hidden), (GRADIENT, inputs.grad)) if array is not None}
        sent, made = self._folder / "sent", self._folder / "made"
        tensors = {_INPUT + name: array for name, array in arrays.items()}
        write_tensors(sent, tensors | {_WEIGHT + name: value.numpy() for name, value in work.weights.items()})
        job = {
            "config": work.stage.config.model_dump(mode="json"), "stage": work.stage.spec.index, "stages": work.stages,
            "number": work.number, "dtype": dtype, "tensors": str(sent), "out": str(made),
        }  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError as error:
            raise HocketError(Code.CHILD_FAILED, f"tts.calibration_processors ({error.strerror})") from error
        if answer != "done\n":
            raise HocketError(Code.CHILD_FAILED, "tts.calibration_processors ended; it said why above")
        found = read_tensors(made)
        return (
            {name.removeprefix(_OURS): array for name, array in found.items() if name.startswith(_OURS)},
            {name.removeprefix(_GRADIENT): own_tensor(a) for name, a in found.items() if name.startswith(_GRADIENT)},
        )

    def close(self) -> None:
        """End the child: it has nothing left to read."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def other_processors() -> Iterator[dict[str, OtherProcessor]]:
    """One child for each of PROCESSORS, by name."""
    with ExitStack() as stack:
        found = {}
        for name, environment in PROCESSORS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found[name] = OtherProcessor(environment, folder)
            stack.callback(found[name].close)
        yield found


def _serve() -> None:
    with threads(1):
        for line in sys.stdin:
            job = json.loads(line)
            tensors = read_tensors(Path(job["tensors"]))
            stage = build_stage(ModelConfig.model_validate(job["config"]), job["stage"], job["stages"])
            weights = {n.removeprefix(_WEIGHT): own_tensor(a) for n, a in tensors.items() if n.startswith(_WEIGHT)}
            arrays = {n.removeprefix(_INPUT): np.array(a) for n, a in tensors.items() if n.startswith(_INPUT)}
            inputs = PassInput.from_arrays(arrays, arrays.pop(GRADIENT, None), stage.config, stage.spec)
            with precision("cpu", job["dtype"]):
                output = replay_pass(stage, weights, inputs, SEED, job["number"])
            made = {_OURS + name: array for name, array in output.arrays().items()}
            made |= {_GRADIENT + name: value.numpy() for name, value in (output.gradients or {}).items()}
            write_tensors(Path(job["out"]), made)
            sys.stdout.write("done\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _serve()
