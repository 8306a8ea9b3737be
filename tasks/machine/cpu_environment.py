"""Environment variables of engine and learner processes on machines without a GPU."""

from __future__ import annotations

ENGINE = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 << 30}:glibc.malloc.trim_threshold={16 << 30}",
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Variables of an engine's process: glibc does not return freed memory, and threads wait without spinning.

By default it returns large blocks with every `free`, and each new tensor has its pages mapped again. An engine
allocates the same sizes at every step. A learner does not get this: its rows differ in length, so that freed blocks
pile up; on the quickstart it would be an eighth faster, and hold 0.4 to 0.9 GB more after ten steps. Spinning saves
nothing on two idle cores; beside another process that keeps one of them busy, it costs a third of the tokens.
"""

LEARNER = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}
"""Variables of a learner rank's process: threads wait without spinning, and oneDNN's cache is small.

A learner and an engine that share cores must not spin while they wait for a thread that the other one has displaced.
oneDNN caches a compiled kernel for every shape of a matrix product, by default up to 1024, which rows of ever new
lengths fill: a gigabyte in nine steps of the quickstart. Within a step a row's shapes recur in every layer, for which a
few entries are enough.
"""
