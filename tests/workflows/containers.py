"""The registered workflows with what runs them, and values as they come from and go to a cluster."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from flyteidl.core import literals_pb2
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

import images
from tests import image_environment
from tests.images.environments import IMAGES
from tests.object_store import KEYS, object_store
from tests.paths import ROOT
from tests.workflows.propeller import IMAGE, Literals, Propeller, package

FOLDERS = re.findall(r"^COPY (\w+) \1$", (ROOT / "images" / "Dockerfile").read_text(), re.MULTILINE)
"""What an image holds of the project."""

EXTRAS = images.EXTRAS["none"]
"""The extras of images for machines without a GPU."""


def image_environments(folder: Path) -> dict[str, Path]:
    """The folder of programs of each image's environment, by the image's name.

    With `RLVR_IMAGES` naming a folder of environments, as `make test-images` does, they are those; otherwise they are
    made in `folder` of links into the environment of the tests (`tests/image_environment.py`).
    """
    if made := os.environ.get("RLVR_IMAGES"):
        return {IMAGE.format(name): Path(made) / stage / "bin" for name, stage in IMAGES["none"].items()}
    built = {extra: image_environment.build(folder / extra, extra) for extra in sorted(set(EXTRAS.values()))}
    return {IMAGE.format(name): built[extra] for name, extra in EXTRAS.items()}


def make_root(folder: Path) -> None:
    """Fill a container's working folder as its image does."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def registered(environments: Mapping[str, Path], folder: Path) -> Iterator[Propeller]:
    """An engine with the registered workflows and an empty bucket; `folder` is new and empty."""
    root, home = folder / "root", folder / "home"
    root.mkdir()
    home.mkdir()
    make_root(root)
    environment = os.environ | {"PYTHONPATH": str(root), "HOME": str(home)}
    entities = package(environments[IMAGE.format("data")], folder / "package.tgz", root, environment)
    with object_store() as store:
        yield Propeller(entities, store, environments, make_root, first=(IMAGE.format("data"),))


def literals(**values: Any) -> Literals:
    """Inputs as they are sent to a cluster."""
    context = FlyteContextManager.current_context()
    return {
        name: TypeEngine.to_literal(context, value, type(value), TypeEngine.to_literal_type(type(value))).to_flyte_idl()
        for name, value in values.items()
    }


def python(literal: literals_pb2.Literal, kind: type) -> Any:
    """An output as a Python value; files and folders are their addresses."""
    value = Literal.from_flyte_idl(literal)
    if value.scalar is not None and value.scalar.blob is not None:
        return value.scalar.blob.uri
    return TypeEngine.to_python_value(FlyteContextManager.current_context(), value, kind)


def files_of(cluster: Propeller) -> fsspec.AbstractFileSystem:
    """The bucket as a file system."""
    keys = {"key": KEYS["aws_access_key_id"], "secret": KEYS["aws_secret_access_key"]}
    return fsspec.filesystem("s3", endpoint_url=cluster.store.endpoint, **keys)
