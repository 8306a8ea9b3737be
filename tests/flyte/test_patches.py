"""The table of flytekit's attributes that this project replaces."""

import importlib.metadata

import pytest

from tasks.flyte import patches
from tasks.flyte.patches import CHECKED_VERSION, PATCHES, Patch, PatchError, find_owner


def test_the_table_was_checked_against_the_installed_flytekit():
    assert importlib.metadata.version("flytekit") == CHECKED_VERSION


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target)
def test_every_target_exists_and_says_why_it_is_replaced(patch):
    owner, name = find_owner(patch)
    assert hasattr(owner, name)
    assert patch.reason
    assert patch.upstream.startswith("https://github.com/flyteorg/") or patch.upstream == patches.NONE_KNOWN


@pytest.mark.parametrize(
    "target",
    [
        "flytekit.core.promise:no_such_function",
        "flytekit.core.local_cache:LocalTaskCache.no_such_method",
        "flytekit.no_such_module:function",
    ],
)
def test_a_target_that_a_flytekit_lacks_is_one_sentence(target):
    with pytest.raises(PatchError) as caught:
        find_owner(Patch(target, lambda original: original, "results would be unreadable", patches.NONE_KNOWN))
    sentence = str(caught.value)
    assert target in sentence
    assert "results would be unreadable" in sentence
    assert f"checked with flytekit {CHECKED_VERSION}" in sentence
    assert "\n" not in sentence


def test_a_second_installation_replaces_nothing_again():
    patches.install()
    before = [getattr(*find_owner(patch)) for patch in PATCHES]
    patches.install()
    assert [getattr(*find_owner(patch)) for patch in PATCHES] == before


def test_without_one_target_none_is_replaced(monkeypatch):
    first = Patch("flytekit.core.promise:translate_inputs_to_literals", lambda _: None, "one", patches.NONE_KNOWN)
    gone = Patch("flytekit.core.promise:no_such_function", lambda _: None, "another", patches.NONE_KNOWN)
    monkeypatch.setattr(patches, "PATCHES", (first, gone))
    before = getattr(*find_owner(first))
    with pytest.raises(PatchError):
        patches.install.__wrapped__()
    assert getattr(*find_owner(first)) is before
