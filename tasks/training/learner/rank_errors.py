"""Tells what an exception of a learner rank means."""

from __future__ import annotations


def is_of_communication(error: BaseException) -> bool:
    """Return whether a rank's exception only means that it could not reach another rank."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return "DistError" in kinds or any(name in str(error) for name in ("gloo/transport", "NCCL", "c10d"))


def is_of_device(error: BaseException) -> bool:
    """Return whether a rank's exception means that its GPU failed (an uncorrectable ECC error, a failed launch).

    A kernel's assertion, or too little memory, would occur again with every new rank.
    """
    text = str(error)
    return "CUDA error" in text and not any(name in text for name in ("device-side assert", "out of memory"))


def is_of_memory(error: BaseException) -> bool:
    """Return whether a rank's exception means that its GPU has too little memory for the recipe."""
    return "CUDA" in str(error) and "out of memory" in str(error)


def is_of_main_memory(error: BaseException) -> bool:
    """Return whether a rank's exception means that it requested more main memory than the machine has.

    Linux accepts any smaller request, and kills a process once the memory is used.
    """
    return isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
