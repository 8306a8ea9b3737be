"""Defines the groups of machines in a Ray cluster, and the Ray resources that place a process in its group.

Each machine of a group is started with the group's resource. Nodes of other Ray clusters do not have it, and processes
are then placed only by GPUs and CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LEARNER, ACTORS = "learner", "actors"
"""Names of the groups. KubeRay includes them in the names of the pods."""

RESOURCES = {LEARNER: "rlvr_learner", ACTORS: "rlvr_actors"}
"""Name of the Ray resource of each group."""

OF_A_MACHINE = 1.0
"""Amount of the group's resource on each machine. The sum in a cluster is the number of machines in the group."""

SHARE = 0.001
"""Amount that a process or a bundle requests. It only determines the placement and must never run out: a thousand
requests fit on one machine. Ray counts in steps of 0.0001."""


def find_group(resources: Mapping[str, float]) -> str | None:
    """Return the group of a machine with these resources, or None if it belongs to no group."""
    return next((group for group, kind in RESOURCES.items() if resources.get(kind)), None)


def are_grouped(machines: Iterable[Mapping[str, float]]) -> bool:
    """Return whether the machines of a cluster, given by their resources, are in groups. A single machine is not.

    One group is enough. If all machines of the other group are lost, its processes wait for new ones.
    """
    groups = [find_group(resources) for resources in machines]
    return len(groups) > 1 and any(groups)
