"""How processes that compute on CPU cores get their memory.

glibc hands large blocks back to the kernel with every `free`, and each new tensor then faults its pages in again: 1.4
million page faults a step for the quickstart's learner. Keeping them is 2.6 s of system time a step less, for 0.8 GB
more. The settings are read when a process starts, so they belong into the environment of the one that starts it.
"""

from __future__ import annotations

KEEP_FREED_MEMORY = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 << 30}:glibc.malloc.trim_threshold={16 << 30}",
}
