"""What a person may name as a checkpoint: an export folder, a folder that holds one, or a version's CID."""

from __future__ import annotations

import os
from pathlib import Path

from common.errors import Code, HocketError


def check_ticket(ticket: str) -> None:
    """A version that is given by its CID is fetched from its run; OPTION_INVALID where nothing says which one that is."""
    if not ticket:
        raise HocketError(Code.OPTION_INVALID, "a CID needs --ticket", remedy="give the ticket of the run that made the version")


def folder_of(checkpoint: str, ticket: str) -> Path:
    """The folder of a checkpoint; a version given by CID is fetched once and kept in the user's cache.

    Raises:
        HocketError: OPTION_INVALID for a CID without a ticket and a ticket without a CID, or what the fetching raises.
    """
    from protocol.content import parse_cid

    if Path(checkpoint).exists():
        if ticket:
            raise HocketError(Code.OPTION_INVALID, f"--ticket, but {checkpoint} is a folder", remedy="a ticket goes with a CID")
        return Path(checkpoint)
    try:
        parse_cid(checkpoint)
    except HocketError:  # no CID, so it is meant as a path
        return Path(checkpoint)
    check_ticket(ticket)
    from simulations.finish import export_by_cid

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return export_by_cid(ticket, checkpoint, cache / "hocket" / "versions" / checkpoint)
