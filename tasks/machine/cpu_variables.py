"""Defines the environment variables of engine and learner processes on machines without a GPU."""

from __future__ import annotations

ENGINE = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 << 30}:glibc.malloc.trim_threshold={16 << 30}",
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Variables of an engine's process: glibc does not return freed memory, and threads wait without spinning.

By default glibc returns large blocks with every `free`, and the pages of each new tensor are mapped again. An engine
allocates the same sizes at every step. The learner does not use this setting, because its rows have different lengths
and freed blocks accumulate. On the quickstart it would be an eighth faster, but use 0.4 to 0.9 GB more after ten
steps. Spinning saves nothing on two idle cores. If another process keeps one of them busy, it costs a third of the
tokens.
"""

LEARNER = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}
"""Variables of a learner rank's process: threads wait without spinning, and oneDNN's cache is small.

A learner and an engine that share cores must not spin while they wait for a thread that the other has displaced.
oneDNN caches a compiled kernel for every shape of a matrix product, by default up to 1024. Rows of ever new lengths
fill this cache: a gigabyte in nine steps of the quickstart. Within a step the shapes of a row recur in every layer, so
a few entries are enough.
"""
