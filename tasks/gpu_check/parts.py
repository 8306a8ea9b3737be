"""Lists the parts of `make gpu-check`: their checks, their time limits, and the packages that they need.

    A  imports and operators          D  time sharing of one GPU
    B  the learner and its variants   E  the pipeline, from the first row to the report
    C  an engine alone                F  a run with time sharing, whose engine is killed

Every part runs in a separate process, so that a crash or a hang of one does not affect the others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tasks.config.loading import SpecError, close_match

TIMES_DRY = 6
"""Time limit of a dry run, as a multiple of the limit on a GPU: it runs on CPUs, on a machine that others use, too."""


class Variant(NamedTuple):
    """Options of the learner that are compared with others.

    Attributes:
        learner: options that replace the default ones.
        package: module that it needs, or an empty text.
        program: program that it needs, or an empty text.
        needs_gpu: whether it cannot run on a CPU.
    """

    learner: dict[str, Any]
    package: str = ""
    program: str = ""
    needs_gpu: bool = False


_PLAIN = {"liger": False, "fused_layers": False, "attention": "fa2"}
VARIANTS = {
    "plain": Variant(_PLAIN),
    "liger": Variant(_PLAIN | {"liger": True}, package="liger_kernel", needs_gpu=True),
    "compiled": Variant(_PLAIN | {"torch_compile": True}, program="g++"),
    "fused": Variant(_PLAIN | {"fused_layers": True}, program="g++"),
    "fa4": Variant(_PLAIN | {"attention": "fa4"}, package="flash_attn", needs_gpu=True),
    "every-2nd-layer": Variant(_PLAIN | {"checkpoint_every_n_layers": 2}),
}
"""Variants of the learner, by name; each is a check of part B, and differs from `plain` in one option."""


class Part(NamedTuple):
    """One part of the check.

    Attributes:
        title: what it is about.
        source: function that returns its checks by name, as `module:name`; it gets a `PartTask`.
        checks: names of its checks, in the order of their runs.
        seconds: time limit on a GPU, seconds.
        packages: modules without which it is skipped.
    """

    title: str
    source: str
    checks: tuple[str, ...]
    seconds: int
    packages: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Names of the packages that it needs and that are not installed."""
        return [PACKAGES.get(name, name) for name in self.packages if importlib.util.find_spec(name) is None]


PACKAGES = {
    "deepspeed": "DeepSpeed",
    "flash_attn": "flash-attn-4",
    "liger_kernel": "liger-kernel",
    "ray": "Ray",
    "vllm": "vLLM",
}
"""Names of packages in messages, by module, if the two differ."""
LEARNER = ("torch", "transformers", "peft", "deepspeed")
RUN = (*LEARNER, "vllm", "ray", "flytekit")
_GPU = "tasks.gpu_check"


def variant_check(name: str) -> str:
    """Return the name of the check of a variant."""
    return f"variant {name}"


PARTS = {
    "A": Part("imports and operators", f"{_GPU}.imports:make_checks", ("imports", "operators"), 60),
    "B": Part(
        "the learner",
        f"{_GPU}.checking:make_checks",
        (
            *("attention", "policy", "log-probabilities", "liger", "weights", "FP8", "training", "offloading"),
            *("training without recomputing", "LoRA", *map(variant_check, VARIANTS)),
        ),
        400,
        LEARNER,
    ),
    "C": Part("an engine alone", f"{_GPU}.checking:make_checks", ("engine",), 180, (*LEARNER, "vllm")),
    "D": Part("time sharing of one GPU", f"{_GPU}.checking:make_checks", ("time sharing",), 100, (*LEARNER, "vllm")),
    "E": Part("the pipeline", f"{_GPU}.pipeline:make_checks", ("pipeline",), 240, RUN),
    "F": Part("a run that loses its engine", f"{_GPU}.lost_engine:make_checks", ("lost engine",), 120, RUN),
}
"""All parts by letter, in the order of their runs."""


def selected(only: Sequence[str] | None, variants: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the names of the checks to run, by the letter of their part.

    Args:
        only: names of checks, and letters of parts. If None, all.
        variants: names of variants. If None, all if `only` is None, and otherwise the ones in `only`.

    Raises:
        SpecError: no check, part or variant has one of the names.
    """
    every = [name for part in PARTS.values() for name in part.checks]
    _check_names("--only", "check or part", only or (), [*PARTS, *every])
    _check_names("--variants", "variant", variants or (), VARIANTS)
    chosen = {variant_check(name) for name in variants or ()}
    for name in every if only is None else only:
        names = {*PARTS[name].checks} if name in PARTS else {name}
        chosen |= names if variants is None else names - {*map(variant_check, VARIANTS)}
    names_of = {letter: [name for name in part.checks if name in chosen] for letter, part in PARTS.items()}
    return {letter: names for letter, names in names_of.items() if names}


def _check_names(option: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    accepted = list(known)
    for name in names:
        if name not in accepted:
            hint = close_match(name, accepted)
            raise SpecError(f"{option}: no {what} is called {name!r}{hint}; there are: {', '.join(accepted)}")
