"""Metrics of the server, as Prometheus reads them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, core, generate_latest

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)  # ends of the histogram


class Metrics:
    """What a `Server` counts; `collect` says what each number is."""

    def __init__(self, server: Any):
        self.server = server
        self.steps = self.batches = self.faults = self.largest = 0
        self.bad_messages = self.refused_sessions = self.swaps = self.refused_swaps = 0
        self.seconds, self.counts = 0.0, np.zeros(len(SECONDS) + 1, int)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def count(self, now: float, since: np.ndarray, faults: int) -> None:
        """Count a batch that was answered now, whose steps arrived at `since` (n,) [s]."""
        # one call for each batch, since each step of a robot has only some microseconds
        waits = now - since
        self.counts += np.bincount(np.searchsorted(SECONDS, waits), minlength=len(self.counts))
        self.seconds += float(waits.sum())
        self.steps, self.batches = self.steps + len(since), self.batches + 1
        self.faults, self.largest = self.faults + faults, max(self.largest, len(since))

    def text(self) -> str:
        """All metrics in Prometheus' format."""
        return generate_latest(self.registry).decode()

    def collect(self) -> Iterator[core.Metric]:
        """The metrics of now, as prometheus_client asks for them."""
        counters = {
            "steps": (self.steps, "control steps that were answered"),
            "batches": (self.batches, "runs of the policy"),
            "faults": (self.faults, "steps with a number that is not finite"),
            "messages_refused": (self.bad_messages, "messages that were answered with an error"),
            "sessions_refused": (self.refused_sessions, "sessions that were not opened"),
            "swaps": (self.swaps, "versions that took over"),
            "swaps_refused": (self.refused_swaps, "versions that could not take over"),
        }
        for name, (value, text) in counters.items():
            yield core.CounterMetricFamily(f"gpusim_serve_{name}", text, value)
        gauges = {
            "sessions": (self.server.sessions, "sessions that are open"),
            "sessions_limit": (self.server.settings["sessions"], "sessions that may be open"),
            "largest_batch": (self.largest, "steps of the largest batch"),
        }
        for name, (value, text) in gauges.items():
            yield core.GaugeMetricFamily(f"gpusim_serve_{name}", text, value)
        text, labels = "sessions that it drives", ["version"]
        version = core.GaugeMetricFamily("gpusim_serve_version", text, labels=labels)
        for pool in self.server.pools:
            version.add_metric([pool.version.name], pool.sessions)
        yield version
        ends = [*map(str, SECONDS), "+Inf"]
        buckets = [*zip(ends, np.cumsum(self.counts).tolist(), strict=True)]
        text = "from a message to its answer"
        yield core.HistogramMetricFamily("gpusim_serve_step_seconds", text, buckets, self.seconds)
