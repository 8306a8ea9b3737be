"""Defines alarms: thresholds on a run's metrics, with advice on what to do when they are crossed.

The table in `docs/alarms.md` is generated from this module.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.training.options.run import AlarmsConfig

logger = logging.getLogger(__name__)

REPEAT = 20
"""Number of steps after which an alarm that stays on is logged again."""


@dataclass(frozen=True)
class Alarm:
    """A threshold on one metric.

    Attributes:
        option: field of `AlarmsConfig` with the threshold.
        metric: name of the metric. Its mean over the last `AlarmsConfig.window` steps is compared with the threshold.
        when: the side of the threshold on which the alarm rings.
        meaning: what is wrong, for the log.
        advice: what to do, for the log.
        first_step: first step at which the metric is compared.
    """

    option: str
    metric: str
    when: Literal["above", "below"]
    meaning: str
    advice: str
    first_step: int = 0

    def is_ringing(self, value: float, threshold: float) -> bool:
        """Return True if `value` is on the wrong side of `threshold`."""
        return value > threshold if self.when == "above" else value < threshold


ALARMS = (
    Alarm(
        "min_entropy",
        "entropy",
        "below",
        "the policy samples almost the same response each time: its entropy has collapsed",
        "raise objective.clip_high (DAPO: 0.28), add objective.entropy_coefficient or a KL penalty, or stop here",
    ),
    Alarm(
        "max_entropy",
        "entropy",
        "above",
        "the policy samples almost at random: its entropy is high",
        "lower optimizer.learning_rate or objective.entropy_coefficient, and see whether responses are still text",
    ),
    Alarm(
        "min_reward",
        "reward",
        "below",
        "the mean score stays low: hardly any response is rewarded",
        "try the reward on responses in rollouts/, and take easier prompts or more samples",
        first_step=20,
    ),
    Alarm(
        "max_mismatch",
        "mismatch",
        "above",
        "the policy that sampled is far from the one that learns, by age or by rounding: importance weights are not "
        "near 1",
        "give both the same type (learner.dtype, actors.engine.dtype), and lower max_staleness or async_steps",
    ),
    Alarm(
        "max_truncated",
        "truncated",
        "above",
        "many responses are cut off, and are judged by what they had no room to say",
        "raise sampling.max_tokens, or penalise length softly (objective.shaping.overlong)",
    ),
    Alarm(
        "min_reward_std",
        "reward_std",
        "below",
        "the rewards of a group hardly differ: advantages are small or, once they are normalised, noise",
        "look at the rewards (rollouts/): a verifier that scores everything alike, or prompts that are all solved",
    ),
    Alarm(
        "max_zero_variance",
        "zero_variance",
        "above",
        "most of what is generated teaches nothing: its prompts are too easy or too hard by now",
        "filter the mixture by difficulty again with this policy, or take other prompts",
    ),
    Alarm(
        "max_clipped",
        "clip_high",
        "above",
        "many tokens lie above the upper clip bound: the policy moves far within one batch",
        "lower optimizer.learning_rate or updates.minibatches x updates.epochs",
    ),
    Alarm(
        "max_out_of_bounds",
        "is_oob_ratio",
        "above",
        "the correction truncates or drops many weights: the engine's probabilities are far from the learner's",
        "give both the same type (learner.dtype, actors.engine.dtype), lower max_staleness, or relax "
        "objective.correction's min and max",
    ),
    Alarm(
        "max_sampling_rounds",
        "sampling_rounds",
        "above",
        "a batch needs many rounds of prompts: most of them are too easy or too hard by now",
        "raise resampling.batch_multiplier, or filter the mixture by difficulty again with this policy",
    ),
    Alarm(
        "max_staleness_dropped",
        "stale_groups_share",
        "above",
        "groups are generated and then dropped, because they are older than max_staleness",
        "raise max_staleness, or lower async_steps",
    ),
    Alarm(
        "max_unjudged",
        "unjudged_share",
        "above",
        "responses cannot be scored, and are lost",
        "look at detail in the ledger: an endpoint that is away, or a verifier that fails",
    ),
    Alarm(
        "min_length_growth",
        "length_growth",
        "below",
        "responses have become a fraction as long as they were",
        "see whether short answers are rewarded, by a verifier that looks only at the end or by a length penalty",
    ),
    Alarm(
        "max_length_growth",
        "length_growth",
        "above",
        "responses have become many times as long as they were",
        "see whether the reward grows as well; a length penalty is objective.shaping.overlong",
    ),
    Alarm(
        "max_grad_norm",
        "grad_norm",
        "above",
        "the gradient is large: updates are no longer small steps",
        "lower optimizer.learning_rate, and look at objective.aggregation: a loss that is a sum has such gradients",
    ),
    Alarm(
        "max_grad_norm_growth",
        "grad_norm_ratio",
        "above",
        "the gradient is many times what it was over the run",
        "lower optimizer.learning_rate; one step is not a reason for worry",
    ),
)


class Watch:
    """Compares each step's metrics with the thresholds, and logs a warning for each that is crossed."""

    def __init__(self, config: AlarmsConfig) -> None:
        self._config = config
        self._recent: dict[str, deque[float]] = {}
        self._first_length: deque[float] = deque(maxlen=config.window)
        self._norms: deque[float] = deque(maxlen=100)
        self._warned_at: dict[str, int] = {}

    def recall(self, steps: Iterable[Mapping[str, float]]) -> None:
        """Record the metrics of earlier attempts, to compare later steps with them. Log nothing."""
        for metrics in steps:
            self._take(metrics)

    def observe(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record a step's metrics, log the thresholds that are crossed, and return their number as `alarms`."""
        ringing = 0
        taken = self._take(metrics)
        for alarm in ALARMS:
            threshold = getattr(self._config, alarm.option)
            if threshold is None or alarm.metric not in taken:
                continue
            values = self._recent[alarm.metric]
            value = statistics.fmean(values)
            step = int(metrics["step"])
            full = len(values) == self._config.window and step >= alarm.first_step
            if full and alarm.is_ringing(value, threshold):
                ringing += 1
                self._warn(alarm, step, value, threshold)
            else:
                self._warned_at.pop(alarm.option, None)
        return {"alarms": float(ringing)}

    def _take(self, metrics: Mapping[str, float]) -> set[str]:
        """Add the watched metrics of a step to the recent ones, and return their names."""
        seen = {**metrics, **self._compute_derived(metrics)}
        taken = {alarm.metric for alarm in ALARMS} & set(seen)
        for name in taken:
            self._recent.setdefault(name, deque(maxlen=self._config.window)).append(seen[name])
        return taken

    def _compute_derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the ratios that alarms watch, relative to earlier steps or to everything that was sampled."""
        ratios = {}
        if groups := metrics.get("groups", 0.0):
            ratios["stale_groups_share"] = metrics["stale_groups"] / groups
        if samples := metrics.get("samples", 0.0):
            ratios["unjudged_share"] = metrics["unjudged_samples"] / samples
        if (length := metrics.get("response_length")) is not None:
            if len(self._first_length) < self._config.window:
                self._first_length.append(length)
            ratios["length_growth"] = length / max(statistics.fmean(self._first_length), 1.0)
        if (norm := metrics.get("grad_norm")) is not None:
            if self._norms and (usual := statistics.median(self._norms)) > 0:
                ratios["grad_norm_ratio"] = norm / usual
            self._norms.append(norm)
        return ratios

    def _warn(self, alarm: Alarm, step: int, value: float, threshold: float) -> None:
        if step - self._warned_at.get(alarm.option, -REPEAT) < REPEAT:
            return
        self._warned_at[alarm.option] = step
        logger.warning(
            "step %d: %s is %.3g, %s alarms.%s = %g: %s. %s",
            step,
            alarm.metric,
            value,
            alarm.when,
            alarm.option,
            threshold,
            alarm.meaning,
            alarm.advice[0].upper() + alarm.advice[1:],
        )
