"""A vLLM stat logger that collects an engine's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.metrics.loggers import StatLoggerBase

from tasks.generation.interface import EngineStatistics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class Recorder(StatLoggerBase):
    """A stat logger that updates its `statistics` in every iteration of the engine."""

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
        self.statistics = EngineStatistics()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Take the figures of one iteration; vLLM calls this."""
        if iteration_stats is not None:
            self.statistics.generated_tokens += iteration_stats.num_generation_tokens
            self.statistics.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self.statistics.running = scheduler_stats.num_running_reqs
            self.statistics.queued = scheduler_stats.num_waiting_reqs
            self.statistics.kv_cache_usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        """Log nothing at the start."""
