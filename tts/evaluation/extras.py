"""The optional packages of the evaluation, imported when they are used."""

from __future__ import annotations

from functools import partial

from common import extras

REMEDY = "make setup-evaluate, or pip install 'hocket[evaluate]' and then pip install --no-deps resemblyzer==0.1.4"

import_extra = partial(extras.import_extra, remedy=REMEDY)
