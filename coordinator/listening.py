"""Has the run's versions listened to, beside the training: a child measures each one that is due and speaks previews of it.

    <state>/previews/round-<R>/     watch.json, and of each preview sentence a WAV and a spectrogram

Rounds never wait for it, and nothing that goes wrong in it ends the run. How far it has come is in the journal.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from common.errors import Code, HocketError
from common.files import atomic_write, disk_error
from coordinator.children import python_module, run_once
from coordinator.core import Core
from coordinator.listen_plan import Choice, choose, outdated
from coordinator.run import RunState
from coordinator.run_config import RunConfig

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
LIMIT_S = 3600.0
MOST_BYTES = 16 << 20  # of the child's answer


def next_choice(state: RunState, config: RunConfig) -> Choice:
    """What is listened to next, or is being listened to."""
    done = [one["round"] for one in state.listened]
    return choose(state.versions, done, every=config.previews.every, last=config.rounds.count)


class Listening:
    """The loop that has versions listened to.

    Args:
        core: of the run; signer: the coordinator's public key, under which versions are signed.
        folder: that the run file's paths are relative to. state_dir: of the coordinator.
    """

    def __init__(self, core: Core, signer: bytes, folder: Path, state_dir: Path) -> None:
        self._core = core
        self._signer = signer
        self._folder = folder
        self._state_dir = state_dir
        self._previews = state_dir / "previews"

    async def run(self) -> None:
        """Until cancelled; a child that runs is ended with it."""
        while True:
            choice = next_choice(self._core.state, self._core.config)
            if choice.round is None:
                await self._core.news(self._core.state.revision, LOOK_AGAIN_S)
            else:
                await self._listen(choice.round, choice)

    async def caught_up(self) -> None:
        """Return when no version is due any more; each takes at most `LIMIT_S`."""
        while next_choice(self._core.state, self._core.config).round is not None:
            await self._core.news(self._core.state.revision, LOOK_AGAIN_S)

    async def _listen(self, round: int, choice: Choice) -> None:
        core = self._core
        logger.info("listening to the version of round %d: %s", round, choice.reason)
        folder = self._previews / f"round-{round}"
        found: dict[str, Any] = {}
        errors: list[str] = []
        try:
            order = self._order(choice.cid, folder)
            await run_once(python_module("tts.listen", str(order)), self._state_dir / "listen.log", limit_s=LIMIT_S)
            found = read_result(folder / "watch.json")
            errors = found["errors"]
        except HocketError as error:
            errors = [error.line()]
        for line in errors:
            logger.warning("listening to round %d: %s", round, line)
        alarms = [{"round": round, **one} for one in found.get("alarms", [])]
        for alarm in alarms:
            logger.warning("alarm, %s: %s", alarm["kind"], alarm["reason"])
        core.emit(
            "listened", round=round, cid=choice.cid, skipped=choice.skipped, seconds=found.get("seconds"),
            watch=found.get("watch"), alarms=alarms, previews=len(found.get("previews", [])), errors=errors,
        )  # fmt: skip
        self._tidy()

    def _order(self, cid: str, folder: Path) -> Path:
        """Write what the child is to do; whatever an interrupted listening has left is removed."""
        previews = self._core.config.previews
        own = self._folder / previews.codec
        order = {
            "store": str(self._state_dir / "blocks"), "cid": cid, "signer": self._signer.hex(), "out": str(folder),
            "codec": str(own) if own.is_dir() else previews.codec, "sentences": list(previews.sentences),
            "seed": self._core.config.run.seed,
        }  # fmt: skip
        path = self._previews / "order.json"
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            raise disk_error(error, folder) from error
        atomic_write(path, json.dumps(order).encode())
        return path

    def _tidy(self) -> None:
        """Keep the newest previews only; what cannot be removed is tried again the next time."""
        try:
            there = {int(path.name[6:]): path for path in self._previews.glob("round-*") if path.name[6:].isdigit()}
            for round in outdated(there.keys(), self._core.config.previews.keep):
                shutil.rmtree(there[round])
        except OSError as error:
            logger.warning("%s", disk_error(error, self._previews).line())


def read_result(path: Path) -> dict[str, Any]:
    """What the child wrote.

    Raises:
        HocketError: CHILD_FAILED.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise HocketError(Code.CHILD_FAILED, f"{path} has more than {MOST_BYTES} bytes")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HocketError(Code.CHILD_FAILED, f"{path} is no result of a listening ({error})") from error
    kinds = {"errors": list, "alarms": list, "previews": list}
    if not isinstance(found, dict) or any(not isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise HocketError(Code.CHILD_FAILED, f"{path} is no result of a listening")
    return found
