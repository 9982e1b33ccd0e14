"""The optional packages of the evaluation, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from common.errors import Code, HocketError

REMEDY = "make setup-evaluate, or pip install 'hocket[evaluate]' and then pip install --no-deps resemblyzer==0.1.4"


def import_extra(name: str) -> ModuleType:
    """Import the package `name`.

    Raises:
        HocketError: EXTRA_MISSING, with what to type, where it or something it needs is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HocketError(Code.EXTRA_MISSING, f"{name} cannot be imported ({error})", remedy=REMEDY) from error
