import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.recipe.correction import CorrectionConfig
from tasks.recipe.objective import KLConfig, ObjectiveConfig


def test_the_default_is_the_olmo_rl_objective():
    config = ObjectiveConfig()
    assert (config.advantage, config.aggregation) == ("group_mean", "token")
    assert (config.clip_low, config.clip_high) == (0.2, 0.28)
    assert config.correction == CorrectionConfig(kind="tis", max=2.0)
    assert config.kl == KLConfig(beta=0.0, estimator="k3")
    assert config.force_on_policy_ratio is False


def test_parsing_a_config_loads_no_torch():
    code = (
        "import sys; from tasks.recipe.objective import ObjectiveConfig; ObjectiveConfig();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_resolves():
    import tasks.objective as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("correction", "named"),
    [
        ({"kind": "tis", "min": 2.5}, ["correction.min = 2.5", "correction.max = 2.0"]),
        ({"kind": "tis", "max": None}, ["kind = tis", "correction.max"]),
        ({"kind": "none", "min": 0.5}, ["kind = none", "correction.min = 0.5"]),
        ({"kind": "none", "max": 2.0}, ["kind = none", "correction.max = 2.0"]),
        ({"kind": "icepop", "max": 5.0}, ["kind = icepop", "correction.min"]),
        ({"kind": "icepop", "min": 0.5}, ["kind = icepop", "correction.max"]),
        ({"kind": "seq_mask_tis"}, ["kind = seq_mask_tis", "correction.min"]),
        ({"kind": "icepop", "min": 5.0, "max": 0.5}, ["correction.min = 5.0", "correction.max = 0.5"]),
        ({"kind": "sequence_truncate"}, ["kind = sequence_truncate", "correction.max"]),
        ({"kind": "sequence_mask", "min": 0.5, "max": 2.0}, ["kind = sequence_mask", "correction.min = 0.5"]),
        ({"off_policy_threshold": 0}, ["off_policy_threshold"]),
        ({"mask": {}}, ["correction.mask.max", "correction.mask.min"]),
        ({"mask": {"min": 1.2, "max": 0.8}}, ["correction.mask.min = 1.2", "correction.mask.max = 0.8"]),
        ({"mask": {"metric": "tv", "min": 0.1}}, ["correction.mask.metric = tv", "correction.mask.min = 0.1"]),
        (
            {"kind": "icepop", "min": 0.5, "max": 5.0, "mask": {"max": 2.0}},
            ["correction.kind = icepop", "correction.mask", "kind = tis or none"],
        ),
        ({"kind": "sometimes"}, ["kind"]),
        ({"kind": "tis", "rho": 2.0}, ["rho"]),
    ],
)
def test_a_correction_that_contradicts_itself_is_refused_by_name(correction, named):
    with pytest.raises(ValidationError) as error:
        ObjectiveConfig(correction=correction)
    assert all(name in str(error.value) for name in named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"aggregation": "constant"}, ["aggregation = constant", "constant_length"]),
        ({"aggregation": "token", "constant_length": 10}, ["aggregation = token", "constant_length = 10"]),
        ({"constant_length": 0, "aggregation": "constant"}, ["constant_length"]),
        ({"clip_low": -0.1}, ["clip_low"]),
        ({"clip_low": 1.1}, ["clip_low"]),
        ({"kl": {"beta": -1}}, ["kl.beta"]),
        ({"kl": {"estimator": "k4"}}, ["kl.estimator"]),
        ({"kl": {"beta": 0.1, "estimator": "k1"}}, ["kl.estimator = k1", "kl.importance_corrected", "kl.in_reward"]),
        (
            {"kl": {"beta": 0.1, "estimator": "k2", "importance_corrected": True}},
            ["kl.importance_corrected", "gradient of k2"],
        ),
        ({"kl": {"importance_corrected": True}}, ["kl.importance_corrected", "kl.beta is 0"]),
        ({"kl": {"in_reward": True}}, ["kl.in_reward", "kl.beta is 0"]),
        (
            {"kl": {"beta": 0.1, "in_reward": True, "importance_corrected": True}},
            ["kl.importance_corrected", "kl.in_reward"],
        ),
        (
            {
                "reward_aggregation": "normalize_then_sum",
                "advantage": "group_norm",
                "kl": {"beta": 0.1, "in_reward": True},
            },
            ["reward_aggregation = normalize_then_sum", "kl.in_reward"],
        ),
        ({"kl": {"sync_every": 10, "sync_alpha": 0.5}}, ["kl.sync_every", "kl.beta is 0"]),
        ({"kl": {"beta": 0.1, "sync_every": 10}}, ["kl.sync_every", "kl.sync_alpha"]),
        ({"advantage": "pass_at_k"}, ["advantage = pass_at_k", "needs pass_at_k"]),
        ({"advantage": "pass_at_k", "pass_at_k": 1}, ["pass_at_k"]),
        ({"pass_at_k": 4}, ["advantage = group_mean", "pass_at_k = 4"]),
        (
            {"advantage": "pass_at_k", "pass_at_k": 2, "normalization": "batch"},
            ["advantage = pass_at_k", "normalization = batch"],
        ),
        ({"advantage": "maxrl", "normalization": "group"}, ["advantage = maxrl", "normalization = group"]),
        ({"advantage": "maxrl", "shaping": {"signed": True}}, ["advantage = maxrl", "shaping.signed"]),
        (
            {"advantage": "maxrl", "shaping": {"overlong": {"max_length": 10, "cache": 1}}},
            ["advantage = maxrl", "shaping.overlong"],
        ),
        ({"advantage": "maxrl", "kl": {"beta": 0.1, "in_reward": True}}, ["advantage = maxrl", "kl.in_reward"]),
        ({"surrogate": "gspo"}, ["surrogate = gspo", "aggregation = sequence", "token"]),
        ({"surrogate": "cispo", "dual_clip": 3.0}, ["surrogate = cispo", "dual_clip = 3.0"]),
        ({"surrogate": "dppo"}, ["surrogate = dppo", "correction.kind = none", "tis"]),
        (
            {"surrogate": "dppo", "correction": {"kind": "none"}, "clip_high": 0.3},
            ["surrogate = dppo", "clip_high = 0.3", "dppo.high"],
        ),
        (
            {"surrogate": "dppo", "correction": {"kind": "none"}, "dual_clip": 3.0},
            ["surrogate = dppo", "dual_clip = 3.0"],
        ),
        (
            {"surrogate": "dppo", "correction": {"kind": "none"}, "force_on_policy_ratio": True},
            ["surrogate = dppo", "force_on_policy_ratio = True"],
        ),
        ({"dppo": {"high": 0.1}}, ["surrogate = ppo", "dppo"]),
        ({"dual_clip": 1.0}, ["dual_clip"]),
        ({"shaping": {"stop_properly": 1.5}}, ["shaping.stop_properly"]),
        ({"shaping": {"overlong": {"max_length": 9, "cache": 10}}}, ["overlong.cache = 10", "overlong.max_length = 9"]),
        (
            {"shaping": {"stop_properly": 0.5, "overlong": {"max_length": 10, "cache": 1}}},
            ["shaping.stop_properly = 0.5", "shaping.overlong"],
        ),
        ({"shaping": {"stop_properly": 0.5, "signed": True}}, ["shaping.stop_properly = 0.5", "shaping.signed"]),
        ({"shaping": {"stop_properly": 0.5, "filter_truncated": True}}, ["stop_properly", "shaping.filter_truncated"]),
        (
            {"advantage": "group_norm", "reward_aggregation": "normalize_then_sum", "shaping": {"signed": True}},
            ["reward_aggregation = normalize_then_sum", "shaping", "signed"],
        ),
        ({"entropy_coefficient": -0.1}, ["entropy_coefficient"]),
        ({"unknown": 1}, ["unknown"]),
    ],
)
def test_a_config_that_contradicts_itself_is_refused_by_name(fields, named):
    with pytest.raises(ValidationError) as error:
        ObjectiveConfig(**fields)
    assert all(name in str(error.value) for name in named)


def test_a_config_cannot_be_changed_once_made():
    with pytest.raises(ValidationError, match="frozen"):
        ObjectiveConfig().clip_low = 0.1


def test_a_config_survives_the_way_to_json_and_back():
    config = ObjectiveConfig(correction={"kind": "icepop", "min": 0.5, "max": 5.0}, kl={"beta": 0.1})
    assert ObjectiveConfig.model_validate_json(config.model_dump_json()) == config


def test_a_config_of_dppo_survives_it_too():
    config = ObjectiveConfig(surrogate="dppo", correction={"kind": "none"}, dppo={"divergence": "kl", "high": 0.05})
    assert ObjectiveConfig.model_validate_json(config.model_dump_json()) == config
    assert ObjectiveConfig.model_validate_json(ObjectiveConfig().model_dump_json()) == ObjectiveConfig()


def test_the_denominator_counts_what_the_aggregation_divides_by():
    lengths = [3, 0, 5]  # the middle one has left the loss
    assert ObjectiveConfig().denominator(lengths) == 8
    assert ObjectiveConfig(aggregation="sequence").denominator(lengths) == 2
    assert ObjectiveConfig(aggregation="constant", constant_length=10).denominator(lengths) == 20
