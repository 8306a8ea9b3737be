"""The groups of a Ray cluster's machines, and Ray's resource by which a process is placed on a machine of its group.

Each machine of a group is started with the group's resource, which nodes of other Ray clusters do not have: there
processes are placed by GPUs and CPUs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LEARNER, ACTORS = "learner", "actors"
"""Names of the groups, which KubeRay puts into the names of their pods."""

RESOURCES = {LEARNER: "rlvr_learner", ACTORS: "rlvr_actors"}
"""Ray's resource of each group."""

OF_A_MACHINE = 1.0
"""Amount of its group's resource that a machine has; the sum of a cluster is the number of the group's machines."""

SHARE = 0.001
"""Amount that a process or a bundle asks for. It only says where, and must never be what a machine has too little of:
a thousand find room on one. Ray counts in steps of 0.0001."""


def group_of(resources: Mapping[str, float]) -> str | None:
    """Return the group of a machine with these resources, or None if it belongs to no group."""
    return next((group for group, kind in RESOURCES.items() if resources.get(kind)), None)


def are_grouped(machines: Iterable[Mapping[str, float]]) -> bool:
    """Return whether the machines of a cluster, by their resources, are in groups; the only machine holds everything.

    One group is enough: if the machines of the other are lost, its processes wait for them.
    """
    groups = [group_of(resources) for resources in machines]
    return len(groups) > 1 and any(groups)
