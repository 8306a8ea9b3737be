"""Creates the jinja environment of the templates in `templates/`, with autoescaping and filters that format numbers."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.excerpts import episodes
from tasks.reporting import formats


@cache
def load_templates() -> Environment:
    """Return the environment. Its filters are the functions of `tasks.reporting.formats`, under the same names."""
    jinja = Environment(
        loader=FileSystemLoader([Path(__file__).parent / "templates", episodes.FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    jinja.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
    return jinja
