"""Speeds up imports of large libraries by pausing the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """Pause the garbage collector for a block of imports, and exempt the objects that exist at its end.

    Importing vLLM creates 670,000 objects that live as long as the process. Garbage collection takes 5 of the 17
    seconds of the import, 0.7 seconds in each later full collection, and 3.4 seconds at the interpreter's exit. Nested
    blocks have no effect.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
