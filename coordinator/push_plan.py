"""What is given to IPFS next: files to our node, requests to a pinning service, and what neither need keep any more. Pure.

A file is named by the CID of its root. Whatever fails is tried again after a pause that doubles up to a bound; the rest goes on
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
ASK_AGAIN_S = 15.0
MAX_FAILURES_COUNTED = 32


class Kind(StrEnum):
    """What is done next."""

    PUSH = "push"          # give a file to the node, which pins it
    REQUEST = "request"    # ask the pinning service to keep a file that the node has
    ASK = "ask"            # ask the pinning service how far it is
    UNPIN = "unpin"        # let the node drop a file
    WITHDRAW = "withdraw"  # let the pinning service drop a file
    WAIT = "wait"


@dataclass(frozen=True)
class Wanted:
    """A file that the world is to have.

    Args:
        root: its CID. name: for people.
        kind: a file of a version, or of the dataset; the two take turns.
    """

    root: str
    name: str
    kind: Literal["version", "dataset"]


@dataclass(frozen=True)
class Step:
    """What to do, with which file, and why. `wait_s` is None where only news gives something to do."""

    kind: Kind
    root: str = ""
    wait_s: float | None = None
    reason: str = ""


class Trouble(BaseModel):
    """How often in a row something failed, and until when (in seconds since the epoch) it is left alone."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    failures: int = Field(default=0, ge=0)
    until: float = 0.0

    def failed(self, now: float) -> Trouble:
        """The next pause: 5 s, then twice as long each time, at most 10 minutes."""
        failures = min(self.failures + 1, MAX_FAILURES_COUNTED)
        return Trouble(failures=failures, until=now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1)))

    def over(self, now: float) -> bool:
        # A clock that was set back does not prolong a pause beyond the longest one.
        return not now < self.until <= now + LONGEST_PAUSE_S


class FileProgress(BaseModel):
    """How far a file has come.

    Args:
        on_node: the node has it and pins it. request_id: under which the pinning service knows it; empty: under none.
        kept: the pinning service says that it keeps it.
        trouble: with this file alone. ask: when the service is asked about it again.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    on_node: bool = False
    request_id: str = ""
    kept: bool = False
    trouble: Trouble = Trouble()
    ask: Trouble = Trouble()


class Progress(BaseModel):
    """How far all files have come. Kept across restarts; if it is lost, everything is pushed once more, which does no harm."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, FileProgress] = {}
    last_kind: Literal["version", "dataset"] = "dataset"
    node: Trouble = Trouble()
    service: Trouble = Trouble()

    def file(self, root: str) -> FileProgress:
        return self.files.get(root, FileProgress())


def next_step(wanted: Sequence[Wanted], progress: Progress, now: float, *, service: bool) -> Step:
    """What to do next.

    Short talks with the pinning service come first, then files for the node, then what is no longer wanted. A file of a version
    and one of the dataset take turns, so that neither a large dataset nor quick rounds keep the other from the world.

    Args:
        wanted: all files that are to be kept, the most urgent of each kind first.
        now: seconds since the epoch.
        service: whether there is a pinning service.
    """
    files = list(dict.fromkeys(one.root for one in wanted))
    names = {one.root: one.name for one in reversed(wanted)}
    node_answers, service_answers = progress.node.over(now), service and progress.service.over(now)
    ready = [root for root in files if progress.file(root).trouble.over(now)]
    if service_answers:
        for root in ready:
            one = progress.file(root)
            if one.on_node and not one.request_id:
                return Step(Kind.REQUEST, root, reason=f"{names[root]} is on the node; the pinning service is to keep it")
            if one.request_id and not one.kept and one.ask.over(now):
                return Step(Kind.ASK, root, reason=f"the pinning service was asked to keep {names[root]}")
    if node_answers and (chosen := _next_file(wanted, set(ready), progress)) is not None:
        turn = "its turn" if chosen.kind != progress.last_kind else f"nothing else of a {_other(chosen.kind)} is left"
        return Step(Kind.PUSH, chosen.root, reason=f"{chosen.name}: {turn}")
    for root, one in progress.files.items():
        if root in names or not one.trouble.over(now):
            continue
        if one.request_id and service_answers:
            return Step(Kind.WITHDRAW, root, reason="the run does not keep it any more")
        if one.on_node and node_answers:
            return Step(Kind.UNPIN, root, reason="the run does not keep it any more")
    return _wait(progress, now, service=service)


def _other(kind: Literal["version", "dataset"]) -> Literal["version", "dataset"]:
    return "dataset" if kind == "version" else "version"


def _next_file(wanted: Sequence[Wanted], ready: set[str], progress: Progress) -> Wanted | None:
    """The first file that the node has not, of the kind whose turn it is."""
    left = [one for one in wanted if one.root in ready and not progress.file(one.root).on_node]
    return next((one for one in left if one.kind != progress.last_kind), left[0] if left else None)


def _wait(progress: Progress, now: float, *, service: bool) -> Step:
    """Until the first pause is over. Without any pause there is nothing left to do: it would have been the next step."""
    troubles = [progress.node, *([progress.service] if service else [])]
    troubles += [trouble for one in progress.files.values() for trouble in (one.trouble, one.ask)]
    until = min((trouble.until for trouble in troubles if not trouble.over(now)), default=None)
    if until is None:
        return Step(Kind.WAIT, reason="everything is where it belongs")
    return Step(Kind.WAIT, wait_s=until - now, reason="what is left is tried again after a pause")


# ---- what came of a step -----------------------------------------------------------------------------------------------------


def succeeded(
    step: Step, wanted: Sequence[Wanted], progress: Progress, now: float, *, request_id: str = "", kept: bool = False
) -> Progress:
    """The progress after a step that was carried out.

    Args:
        request_id: for REQUEST, what the service calls it. kept: for REQUEST and ASK, whether the service says it has it.
    """
    kinds = {one.root: one.kind for one in reversed(wanted)}
    file = progress.file(step.root)
    if step.kind is Kind.PUSH:
        file = file.model_copy(update={"on_node": True, "trouble": Trouble()})
        progress = progress.model_copy(update={"node": Trouble(), "last_kind": kinds.get(step.root, progress.last_kind)})
    elif step.kind in (Kind.REQUEST, Kind.ASK):
        wait = Trouble(until=now + ASK_AGAIN_S) if step.kind is Kind.REQUEST else _later(file.ask, now)
        changes = {"request_id": request_id or file.request_id, "kept": kept, "ask": Trouble() if kept else wait}
        file = file.model_copy(update=changes | ({"trouble": Trouble()} if kept else {}))
        progress = progress.model_copy(update={"service": Trouble()})
    elif step.kind is Kind.UNPIN:
        file = file.model_copy(update={"on_node": False, "trouble": Trouble()})
        progress = progress.model_copy(update={"node": Trouble()})
    elif step.kind is Kind.WITHDRAW:
        file = file.model_copy(update={"request_id": "", "kept": False, "trouble": Trouble(), "ask": Trouble()})
        progress = progress.model_copy(update={"service": Trouble()})
    return _with(progress, step.root, file)


def _later(ask: Trouble, now: float) -> Trouble:
    """The service is busy with a file: ask less and less often, as far apart as the longest pause."""
    later = Trouble(failures=ask.failures).failed(now)
    return later.model_copy(update={"until": max(later.until, now + ASK_AGAIN_S)})


def failed(step: Step, progress: Progress, now: float, *, unreachable: bool, forget_request: bool = False) -> Progress:
    """The progress after a step that failed.

    Args:
        unreachable: nobody answered, which is the server's trouble and no file's; otherwise this file is left alone for a while.
        forget_request: the service gave the file up, or knows nothing of it: it is asked anew.
    """
    to_service = step.kind in (Kind.REQUEST, Kind.ASK, Kind.WITHDRAW)
    if unreachable:
        which = "service" if to_service else "node"
        trouble = progress.service if to_service else progress.node
        return progress.model_copy(update={which: trouble.failed(now)})
    file = progress.file(step.root)
    changes: dict[str, object] = {"trouble": file.trouble.failed(now)}
    if forget_request:
        changes |= {"request_id": "", "kept": False, "ask": Trouble()}
    return _with(progress, step.root, file.model_copy(update=changes))


def tidied(wanted: Sequence[Wanted], progress: Progress) -> Progress:
    """The progress without what only remembers trouble with files that are not wanted any more."""
    roots = {one.root for one in wanted}
    files = {root: one for root, one in progress.files.items() if root in roots or one.on_node or one.request_id}
    return progress if len(files) == len(progress.files) else progress.model_copy(update={"files": files})


def summary(wanted: Sequence[Wanted], rounds: Mapping[int, Sequence[str]], progress: Progress) -> dict[str, int | None]:
    """How far the run is: the newest round of which the node has every file, files that it has not yet, failures in a row.

    Args:
        rounds: the files of the version that each kept round made.
    """
    whole = [number for number, files in rounds.items() if files and all(progress.file(root).on_node for root in files)]
    roots = dict.fromkeys(one.root for one in wanted)
    failures = progress.node.failures + progress.service.failures
    failures += sum(progress.file(root).trouble.failures for root in roots)
    return {
        "pushed_round": max(whole, default=None),
        "pending": sum(not progress.file(root).on_node for root in roots),
        "failures": failures,
    }


def _with(progress: Progress, root: str, file: FileProgress) -> Progress:
    """Files of which neither node nor service has anything, and that gave no trouble, are not kept in mind."""
    files = {name: one for name, one in progress.files.items() if name != root}
    if file != FileProgress():
        files[root] = file
    return progress.model_copy(update={"files": files})
