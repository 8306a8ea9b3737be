"""Another version of the package `verifiers`, or none, is refused with the version that is needed."""

import sys

import pytest

from tasks.environments.verifiers_package import rows


@pytest.fixture
def without_verifiers(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    return monkeypatch


def test_an_older_version_is_named(tmp_path, without_verifiers):
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text("")
    (tmp_path / "verifiers-0.1.14.dist-info").mkdir()
    (tmp_path / "verifiers-0.1.14.dist-info" / "METADATA").write_text("Name: verifiers\nVersion: 0.1.14\n")
    without_verifiers.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"needs version 0\.4 of verifiers .* version 0\.1\.14 is installed"):
        rows({}, 1)


def test_no_version_is_named(without_verifiers):
    without_verifiers.setitem(sys.modules, "verifiers", None)
    with pytest.raises(RuntimeError, match=r"needs version 0\.4 of verifiers"):
        rows({}, 1)
