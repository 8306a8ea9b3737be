"""Identifies the content of the models that the files name, so that a changed model misses the cache."""

from __future__ import annotations

from pathlib import Path

from tasks.generation.models import HubModel, ModelError, ModelSpec, PackagedGguf
from tasks.lineage.code_digest import LOCK, find_pinned_version
from tasks.sourcing.hub import COMMIT, resolve_revision
from tasks.tables.content_digest import file_digest
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.chat.config import ClassifierConfig, JudgeConfig


def fingerprint_model(spec: ModelSpec) -> ModelSpec:
    """Return the model with its content identified by a digest of local files, a commit, or a package version.

    A package of weights is in the image of the stage that loads it, and not in this task's image. Its version is taken
    from the pins of the images, and that stage checks the file before a rollout is sampled.

    Raises:
        ModelError: a model folder is not usable, or neither this machine nor an image contains the package.
        SpecError: a repository on the hub cannot be read.
    """
    source = spec.source
    if isinstance(source, HubModel):
        commit = resolve_revision(source.name, source.revision, kind="model", where="model: source")
        return spec.model_copy(update={"source": source.model_copy(update={"revision": commit})})
    if not isinstance(source, PackagedGguf) or source.folder() is not None:
        return spec.add_fingerprint()
    version = find_pinned_version(source.package)
    if version is None:
        raise ModelError(
            f"model: package {source.package!r} is not installed here, and {LOCK} has no version of it for an "
            "image to contain"
        )
    return spec.model_copy(update={"fingerprint": f"{source.package}=={version}"})


def is_pinned(spec: ModelSpec) -> bool:
    """Return whether a model was returned by `fingerprint_model`."""
    source = spec.source
    return bool(COMMIT.fullmatch(source.revision)) if isinstance(source, HubModel) else spec.fingerprint is not None


def fingerprint_verifiers(verifiers: VerifiersConfig) -> VerifiersConfig:
    """Return `verifiers` with a digest of each judge or reward model that is a local folder.

    A changed model is then a different input.
    """
    models = {name: model.model_copy(update=_find_digest(model)) for name, model in verifiers.reward_models.items()}
    judge = verifiers.judge and verifiers.judge.model_copy(update=_find_digest(verifiers.judge))
    return verifiers.model_copy(update={"judge": judge, "reward_models": models})


def _find_digest(model: JudgeConfig | ClassifierConfig) -> dict[str, str]:
    """Return the field that identifies a model in a folder, or nothing for other models or if it is already known."""
    is_elsewhere = getattr(model, "url", None) is not None
    is_known = model.fingerprint is not None or is_elsewhere or not Path(model.model).is_dir()
    return {} if is_known else {"fingerprint": file_digest(model.model)}
