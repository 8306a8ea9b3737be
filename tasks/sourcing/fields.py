"""Defines types of options that several parts of a data file use."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import GetPydanticSchema

from tasks.verifiers.scores import OWN

IMPORT_PATH = re.compile(OWN)
"""Regular expression of the import path of a user's code: a module and a name in it."""

Where = Annotated[dict, GetPydanticSchema(lambda _, handler: handler(dict[str, Any]))]
"""Accepted values of columns, or lists of them, by column.

The type is `dict[str, Any]` for pydantic and a plain `dict` for flytekit, which would warn that values of type `Any`
are pickled.
"""
