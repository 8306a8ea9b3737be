"""What processes that compute on CPU cores find in their environment when they start.

`KEEP_FREED_MEMORY`: glibc hands large blocks back to the kernel with every `free`, and each new tensor then faults
its pages in again. An engine asks for the same sizes at every step and keeps them. A learner does not: its rows differ
in length, and with kept blocks that fit no later tensor it held 8.5 GB after six steps, against 4.6 without.

`PATIENT_THREADS`: a learner and an engine that share cores must not spin while they wait for a thread that the other
one has pushed off its core.
"""

from __future__ import annotations

KEEP_FREED_MEMORY = {
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={4 << 30}:glibc.malloc.trim_threshold={16 << 30}",
}
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
