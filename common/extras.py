"""Optional packages, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from common.errors import Code, HocketError


def import_extra(name: str, *, remedy: str) -> ModuleType:
    """Import the package `name`.

    Args:
        remedy: what to type where it is not there.

    Raises:
        HocketError: EXTRA_MISSING where it or something it needs is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HocketError(Code.EXTRA_MISSING, f"{name} cannot be imported ({error})", remedy=remedy) from error
