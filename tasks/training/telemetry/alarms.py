"""Defines alarms: thresholds on a run's metrics, with advice on what to do when they are crossed.

The table in `docs/alarms.md` is generated from `alarms.yaml`, which this module reads.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from tasks.config.loading import Config, read_yaml
from tasks.recipe.alarms import AlarmsConfig

logger = logging.getLogger(__name__)

REPEAT = 20
"""Number of steps after which an alarm that stays on is logged again."""


class Alarm(Config):
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


ALARMS = tuple(map(Alarm.model_validate, read_yaml(Path(__file__).with_suffix(".yaml"))))


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
