"""Identifies the content of models that the files name, so that a changed one misses the cache."""

from __future__ import annotations

from pathlib import Path

from tasks.generation.models import HubModel, ModelError, ModelSpec, PackagedGguf
from tasks.lineage.code_digest import LOCK, pinned_version
from tasks.sourcing.hub import COMMIT, resolve_revision
from tasks.tables.content_digest import file_digest
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.chat.config import ClassifierConfig, JudgeConfig


def fingerprinted_model(spec: ModelSpec) -> ModelSpec:
    """Return the model with its content identified: by a digest of local files, a commit, or a package's version.

    A package of weights lies in the image of the stage that loads it, and not in this task's image: its version is the
    one in the pins of the images, and that stage checks the file before a rollout is sampled.

    Raises:
        ModelError: a model folder that is not usable, a package that neither this machine nor an image holds.
        SpecError: a repository of the hub that cannot be read.
    """
    source = spec.source
    if isinstance(source, HubModel):
        commit = resolve_revision(source.name, source.revision, kind="model", where="model: source")
        return spec.model_copy(update={"source": source.model_copy(update={"revision": commit})})
    if not isinstance(source, PackagedGguf) or source.folder() is not None:
        return spec.fingerprinted()
    version = pinned_version(source.package)
    if version is None:
        raise ModelError(
            f"model: package {source.package!r} is not installed here, and {LOCK} gives no version of it for an "
            "image to hold"
        )
    return spec.model_copy(update={"fingerprint": f"{source.package}=={version}"})


def is_pinned(spec: ModelSpec) -> bool:
    """Return whether a model is one of `fingerprinted_model`."""
    source = spec.source
    return bool(COMMIT.fullmatch(source.revision)) if isinstance(source, HubModel) else spec.fingerprint is not None


def fingerprinted(verifiers: VerifiersConfig) -> VerifiersConfig:
    """Return `verifiers` with a digest of each model in a folder, of a judge or a reward model.

    A changed one is another input.
    """
    models = {name: model.model_copy(update=_digest(model)) for name, model in verifiers.reward_models.items()}
    judge = verifiers.judge and verifiers.judge.model_copy(update=_digest(verifiers.judge))
    return verifiers.model_copy(update={"judge": judge, "reward_models": models})


def _digest(model: JudgeConfig | ClassifierConfig) -> dict[str, str]:
    """Return the field that identifies a model in a folder; nothing for another, and where it is known."""
    is_elsewhere = getattr(model, "url", None) is not None
    is_known = model.fingerprint is not None or is_elsewhere or not Path(model.model).is_dir()
    return {} if is_known else {"fingerprint": file_digest(model.model)}
