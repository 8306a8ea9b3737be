"""What processes that compute on CPU cores find in their environment when they start.

`ENGINE`: glibc hands large blocks back to the kernel with every `free`, and each new tensor then faults its pages in
again. An engine asks for the same sizes at every step and keeps them. A learner does not: its rows differ in length, so
that kept blocks pile up; on the quickstart it would be an eighth faster and hold 0.4 to 0.9 GB more after ten steps.

`LEARNER`: a learner and an engine that share cores must not spin while they wait for a thread that the other one has
pushed off its core. And oneDNN keeps what it made for each shape that a matrix product had, up to 1024 of them, which
rows of ever new lengths fill: a gigabyte in nine steps of the quickstart. Within a step a row's shapes come again in
every layer, for which a few are enough.
"""

from __future__ import annotations

ENGINE = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 << 30}:glibc.malloc.trim_threshold={16 << 30}",
}
LEARNER = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}
