"""Numbered errors: what happened, why, and how to mend it.

Every mistake that a person or a peer can make has a number here and an entry of the same number in `docs/errors.md`
(a test compares the two). The command line prints one line and exits with the error's exit code; a traceback is
kept for faults of our own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_NETWORK = 4
EXIT_STATE = 5
EXIT_REFUSED = 6
EXIT_RESOURCES = 7


class Code(IntEnum):
    """Error numbers. 1xx: what a person typed; 2xx: data; 3xx: network and peers; 4xx: state and disk; 5xx: model."""

    RUN_FILE_UNREADABLE = 101
    RUN_FILE_UNKNOWN_KEY = 102
    RUN_FILE_INVALID = 103
    TICKET_INVALID = 104
    OPTION_INVALID = 105
    FAULT_PLAN_INVALID = 106
    EXTRA_MISSING = 107
    NETWORK_REFUSED = 108
    CALIBRATION_INVALID = 109

    CORPUS_UNREADABLE = 201
    LANGUAGE_REFUSED = 202
    TEXT_AUDIO_MISMATCH = 203
    TOO_FEW_FRAMES = 204
    NO_PHONEMES = 205
    CODEC_UNREADABLE = 206
    SHARD_DAMAGED = 207
    AUDIO_UNREADABLE = 208
    CORPUS_TOO_SMALL = 209
    MANIFEST_INVALID = 210
    CID_INVALID = 211
    TEXT_NOT_SPOKEN = 212
    AUDIO_SILENT = 213
    AUDIO_CLIPPED = 214
    SCRIPT_MISMATCH = 215
    SUBTITLES_UNREADABLE = 216
    EVIDENCE_INVALID = 217
    EVIDENCE_INCOMPLETE = 218

    COORDINATOR_UNREACHABLE = 301
    COORDINATOR_KEY_MISMATCH = 302
    JOIN_REFUSED = 303
    PEER_UNREACHABLE = 304
    PEER_SILENT = 305
    STREAM_BROKEN = 306
    PEER_REFUSED = 307
    SIGNATURE_INVALID = 308
    BLOCK_NOT_FOUND = 309
    BLOCK_DAMAGED = 310
    BOOTSTRAP_UNREACHABLE = 311
    MESSAGE_TOO_LARGE = 312
    CARRIER_FAILED = 313
    TENSOR_INVALID = 314
    IPFS_UNREACHABLE = 315
    IPFS_REFUSED = 316
    DEVICE_FAILED = 317
    QUARANTINED = 318
    RATE_LIMITED = 319
    BANNED = 320
    INVITATION_REFUSED = 321
    OPENING_INVALID = 322
    COMMIT_REFUSED = 323

    STATE_UNREADABLE = 401
    DISK_FULL = 402
    STATE_LOCKED = 403
    IDENTITY_UNREADABLE = 404
    PORT_TAKEN = 405
    VERSION_ROLLED_BACK = 406
    UPDATE_REFUSED = 407
    OUTPUT_EXISTS = 408
    CHILD_FAILED = 409
    NOT_ALIVE = 410

    CHECKPOINT_INVALID = 501
    MODEL_CONFIG_INVALID = 502
    STAGES_INVALID = 503
    STALE_GRAPH = 504
    NOT_FINITE = 505
    INPUT_INVALID = 506


@dataclass(frozen=True)
class ErrorSpec:
    """What one error number means.

    Args:
        title: the fault in a few words, in lower case.
        remedy: one sentence that tells the reader what to do.
        exit_code: of a command that ends with this error.
    """

    title: str
    remedy: str
    exit_code: int


ERRORS: dict[Code, ErrorSpec] = {
    Code.RUN_FILE_UNREADABLE: ErrorSpec("the run file cannot be read", "check the path and that it is TOML", EXIT_USAGE),
    Code.RUN_FILE_UNKNOWN_KEY: ErrorSpec("the run file has an unknown key", "use the nearest known key named here", EXIT_USAGE),
    Code.RUN_FILE_INVALID: ErrorSpec("the run file has a value that does not fit", "correct the value named here", EXIT_USAGE),
    Code.TICKET_INVALID: ErrorSpec(
        "the ticket is damaged or not a ticket", "copy the whole line that begins with hocket1: again", EXIT_USAGE
    ),
    Code.OPTION_INVALID: ErrorSpec("an option does not fit", "correct the option named here", EXIT_USAGE),
    Code.FAULT_PLAN_INVALID: ErrorSpec("the fault plan does not fit", "correct the line named here", EXIT_USAGE),
    Code.EXTRA_MISSING: ErrorSpec("an optional package is missing", "install the extra named here", EXIT_USAGE),
    Code.NETWORK_REFUSED: ErrorSpec(
        "a network of its own for each worker cannot be made",
        "run as root where iproute2 and util-linux are installed, or leave cuts out of the plan",
        EXIT_RESOURCES,
    ),
    Code.CALIBRATION_INVALID: ErrorSpec(
        "the table of tolerances cannot be used",
        "write one with `hocket calibrate --out`, or leave [audit] calibration out",
        EXIT_USAGE,
    ),
    Code.CORPUS_UNREADABLE: ErrorSpec(
        "the corpus cannot be read", "give a folder in LJSpeech layout: metadata.csv and wavs/", EXIT_INPUT
    ),
    Code.LANGUAGE_REFUSED: ErrorSpec("the language tag is refused", "use the tag named here", EXIT_INPUT),
    Code.TEXT_AUDIO_MISMATCH: ErrorSpec(
        "texts and recordings do not match", "make each line of metadata.csv name one recording", EXIT_INPUT
    ),
    Code.TOO_FEW_FRAMES: ErrorSpec(
        "a recording has fewer frames than its text has phonemes", "check the transcript, or leave the clip out", EXIT_INPUT
    ),
    Code.NO_PHONEMES: ErrorSpec("a text gives no phonemes", "check the transcript and its language", EXIT_INPUT),
    Code.CODEC_UNREADABLE: ErrorSpec(
        "the codec cannot be loaded", "give a folder with config.json and model.safetensors", EXIT_INPUT
    ),
    Code.SHARD_DAMAGED: ErrorSpec(
        "a shard does not fit its manifest", "fetch it again; its bytes are checked on arrival", EXIT_INPUT
    ),
    Code.AUDIO_UNREADABLE: ErrorSpec("a recording cannot be read", "convert it to FLAC or WAV, or leave it out", EXIT_INPUT),
    Code.CORPUS_TOO_SMALL: ErrorSpec("the corpus is too small", "add clips, or lower what is held out", EXIT_INPUT),
    Code.MANIFEST_INVALID: ErrorSpec(
        "a manifest is damaged or its signature does not fit", "fetch it again from a source that you trust", EXIT_INPUT
    ),
    Code.CID_INVALID: ErrorSpec(
        "a content identifier is damaged or of an unknown kind",
        "copy the whole name again; ours begin with bafk or bafy",
        EXIT_INPUT,
    ),
    Code.TEXT_NOT_SPOKEN: ErrorSpec(
        "a recording does not say its text", "check the transcript and its language, or leave the clip out", EXIT_INPUT
    ),
    Code.AUDIO_SILENT: ErrorSpec("a recording is silent", "check that it is the right file, or leave it out", EXIT_INPUT),
    Code.AUDIO_CLIPPED: ErrorSpec("a recording is clipped", "take it from a quieter source, or leave it out", EXIT_INPUT),
    Code.SCRIPT_MISMATCH: ErrorSpec(
        "a text is not in the script of its language", "check the language column, or leave the clip out", EXIT_INPUT
    ),
    Code.SUBTITLES_UNREADABLE: ErrorSpec(
        "a subtitle file cannot be read", "mend the line named here, or save the file again as SRT or WebVTT in UTF-8", EXIT_INPUT
    ),
    Code.EVIDENCE_INVALID: ErrorSpec(
        "the evidence against a member does not hold", "read what was checked; the member may have to be pardoned", EXIT_INPUT
    ),
    Code.EVIDENCE_INCOMPLETE: ErrorSpec(
        "not all of the evidence against a member could be checked", "give a folder that holds what is missing", EXIT_STATE
    ),
    Code.COORDINATOR_UNREACHABLE: ErrorSpec(
        "the coordinator does not answer", "check the network, and ask its organiser whether the run is up", EXIT_NETWORK
    ),
    Code.COORDINATOR_KEY_MISMATCH: ErrorSpec(
        "the coordinator is not the one that the ticket names", "ask the organiser for a fresh ticket", EXIT_NETWORK
    ),
    Code.JOIN_REFUSED: ErrorSpec("the coordinator refused the join", "read the reason, then ask the organiser", EXIT_REFUSED),
    Code.PEER_UNREACHABLE: ErrorSpec("a peer cannot be reached", "nothing to do: another replica is tried", EXIT_NETWORK),
    Code.PEER_SILENT: ErrorSpec("a peer went silent", "nothing to do: another replica is tried", EXIT_NETWORK),
    Code.STREAM_BROKEN: ErrorSpec(
        "a stream ended before its end frame", "nothing to do: the call is tried elsewhere", EXIT_NETWORK
    ),
    Code.PEER_REFUSED: ErrorSpec("a peer refused the call", "read the reason given", EXIT_REFUSED),
    Code.SIGNATURE_INVALID: ErrorSpec(
        "a signature does not fit", "the sender's software or key is at fault; nothing was taken over", EXIT_REFUSED
    ),
    Code.BLOCK_NOT_FOUND: ErrorSpec(
        "no peer has the block", "wait until a peer that holds it is back, or check the CID", EXIT_NETWORK
    ),
    Code.BLOCK_DAMAGED: ErrorSpec(
        "a block does not match its CID", "nothing to do: it was dropped and is fetched elsewhere", EXIT_NETWORK
    ),
    Code.BOOTSTRAP_UNREACHABLE: ErrorSpec(
        "no bootstrap peer answers", "check the network, and ask the organiser for a fresh ticket", EXIT_NETWORK
    ),
    Code.MESSAGE_TOO_LARGE: ErrorSpec(
        "a message is larger than its limit", "the sender's software is at fault; nothing was taken over", EXIT_REFUSED
    ),
    Code.CARRIER_FAILED: ErrorSpec(
        "the libp2p daemon failed", "start the command again; its log is in the state directory", EXIT_NETWORK
    ),
    Code.TENSOR_INVALID: ErrorSpec(
        "a tensor does not fit its head", "nothing to do: it was refused, and the call is tried elsewhere", EXIT_REFUSED
    ),
    Code.IPFS_UNREACHABLE: ErrorSpec(
        "an IPFS node, gateway or pinning service does not answer", "check its address and that it runs", EXIT_NETWORK
    ),
    Code.IPFS_REFUSED: ErrorSpec(
        "an IPFS node, gateway or pinning service refused a request", "read what it said, named here", EXIT_NETWORK
    ),
    Code.DEVICE_FAILED: ErrorSpec(
        "the compute device failed", "check its memory and its driver, and start the command again", EXIT_RESOURCES
    ),
    Code.QUARANTINED: ErrorSpec(
        "the member is quarantined", "ask the organiser for a pardon; anybody can check the evidence named here", EXIT_REFUSED
    ),
    Code.RATE_LIMITED: ErrorSpec("too many calls came at once", "call again after the time named here", EXIT_REFUSED),
    Code.BANNED: ErrorSpec("the organiser has banned this member", "ask the organiser for a pardon", EXIT_REFUSED),
    Code.INVITATION_REFUSED: ErrorSpec(
        "the invitation does not let us in", "ask the organiser for a ticket with a fresh invitation", EXIT_REFUSED
    ),
    Code.OPENING_INVALID: ErrorSpec(
        "an opening cannot be read", "it is not used; whoever made it is asked again or suspected", EXIT_REFUSED
    ),
    Code.COMMIT_REFUSED: ErrorSpec(
        "a commit or an opening is refused", "read the reason given; nothing was taken over", EXIT_REFUSED
    ),
    Code.STATE_UNREADABLE: ErrorSpec(
        "the state directory cannot be read or written", "check its path and permissions", EXIT_STATE
    ),
    Code.DISK_FULL: ErrorSpec("the disk is full", "free some room; the run goes on where it stopped", EXIT_RESOURCES),
    Code.STATE_LOCKED: ErrorSpec("another process uses the state directory", "stop it, or give another --state-dir", EXIT_STATE),
    Code.IDENTITY_UNREADABLE: ErrorSpec(
        "the key file cannot be used", "restore it from a backup, or remove it to get a new identity", EXIT_STATE
    ),
    Code.PORT_TAKEN: ErrorSpec(
        "the port is taken", "stop what listens there, or set [network] listen to another port", EXIT_NETWORK
    ),
    Code.VERSION_ROLLED_BACK: ErrorSpec(
        "the version offered is older than one already seen", "ask the organiser; nothing was taken over", EXIT_REFUSED
    ),
    Code.UPDATE_REFUSED: ErrorSpec("the update is refused", "read the reason given", EXIT_REFUSED),
    Code.OUTPUT_EXISTS: ErrorSpec(
        "the output folder holds something else", "give another folder, or remove that one", EXIT_USAGE
    ),
    Code.CHILD_FAILED: ErrorSpec("a child process failed", "read its log, named here", EXIT_STATE),
    Code.NOT_ALIVE: ErrorSpec("the process is not alive", "read its log, and start it again", EXIT_STATE),
    Code.CHECKPOINT_INVALID: ErrorSpec(
        "the checkpoint cannot be used", "give an export folder, a folder that holds one, or a CID and its ticket", EXIT_INPUT
    ),
    Code.MODEL_CONFIG_INVALID: ErrorSpec("the model configuration does not fit", "correct the value named here", EXIT_USAGE),
    Code.STAGES_INVALID: ErrorSpec(
        "the model cannot be cut into that many stages", "use a number of stages in the range named here", EXIT_USAGE
    ),
    Code.STALE_GRAPH: ErrorSpec(
        "a backward pass met other weights than its forward pass", "a fault of ours: please report it", EXIT_STATE
    ),
    Code.NOT_FINITE: ErrorSpec("a tensor has values that are not finite", "nothing to do: it was refused", EXIT_REFUSED),
    Code.INPUT_INVALID: ErrorSpec("a tensor does not fit the model", "nothing to do: it was refused", EXIT_REFUSED),
}


class HocketError(Exception):
    """A fault that a person can understand and mend; printed as one line, never as a traceback.

    Args:
        code: the registered number.
        detail: what exactly happened, with the name or value concerned.
        remedy: replaces the registered remedy where the place knows a better one.
    """

    def __init__(self, code: Code, detail: str = "", *, remedy: str | None = None) -> None:
        self.code = code
        self.detail = detail
        self.remedy = remedy or ERRORS[code].remedy
        super().__init__(self.line())

    @property
    def exit_code(self) -> int:
        return ERRORS[self.code].exit_code

    def line(self) -> str:
        """The whole error in one line: number, what happened, remedy."""
        what = ERRORS[self.code].title + (f": {self.detail}" if self.detail else "")
        return " ".join(f"H{int(self.code)} {what}. Remedy: {self.remedy}.".split())


_LINE = re.compile(r"H(?P<number>[0-9]{3}) (?P<what>.*)\. Remedy: (?P<remedy>.*)\.")


def error_of_line(line: str) -> HocketError | None:
    """The error whose `line` a child process wrote, as if it had been raised here; None if it is no such line."""
    found = _LINE.fullmatch(line.strip())
    if found is None or int(found["number"]) not in set(Code):
        return None
    code = Code(int(found["number"]))
    what = found["what"].removeprefix(ERRORS[code].title)
    if what and not what.startswith(": "):
        return None
    return HocketError(code, what.removeprefix(": "), remedy=found["remedy"])
