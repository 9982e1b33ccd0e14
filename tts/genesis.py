"""The first version of a model: `python -m tts.genesis --config FILE --stages N --seed S --out DIR`.

Writes stage-0.safetensors ... and prints one JSON object with each file's tensors. The coordinator runs it as a child, so that
its own process needs no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from tts.config import ModelConfig
from tts.stage_files import expected_tensors, stage_file_name, write_stage
from tts.stages import build_stage


def write_genesis(config: ModelConfig, n: int, seed: int, out: Path) -> list[dict[str, Any]]:
    """Write the initial stage files, one stage in memory at a time.

    Returns: per stage its number, file name, size and tensors.
    """
    written = []
    for index in range(n):
        path = out / stage_file_name(index)
        write_stage(path, build_stage(config, index, n, seed=seed))
        tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in expected_tensors(config, index, n)]
        written.append({"stage": index, "file": path.name, "size_bytes": path.stat().st_size, "tensors": tensors})
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tts.genesis", description="Write the initial stage files of a model.")
    parser.add_argument("--config", type=Path, required=True, help="model configuration, JSON")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        try:
            text = options.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HocketError(Code.MODEL_CONFIG_INVALID, f"{options.config}: {error}") from error
        stages = write_genesis(ModelConfig.from_json(text), options.stages, options.seed, options.out)
    except HocketError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    print(json.dumps({"stages": stages}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
