"""The bound of a training's speed, in one line: simulation, learning, the host or memory."""

import resource
from typing import NamedTuple

from gpusim_rl.core.provenance import cores_available

# Why: docs/decisions/benchmarks.md
# Which shares of the time belong together. On the CPU, the host computes the environment's tensors.
# On CUDA the GPU does, so they belong to the simulation.
CPU = {
    "simulation": ("physics",),
    "learning": ("policy", "update"),
    "the host": ("environment", "other"),
}
CUDA = {"simulation": ("physics", "environment"), "learning": ("policy", "update")}
TAKES = {
    "simulation": "physics takes",
    "learning": "networks and their update take",
    "the host": "task, Python and waiting take",
}
ONE = 1.15  # cores: up to here it is one, with threads that wait
PAGES = 1000  # 1/s: each page waits about 0.1 ms for the disk, so a tenth of the time is lost
FULL = 0.95  # share of a GPU's memory
WAITS = 0.3  # share of the time: a learner that waits less bounds the speed itself
SLOW = 1.5  # times the median time of an actor
LAUNCHING = 0.9  # share of the time: the GPU waits for the host that launches its work


class Verdict(NamedTuple):
    """The bound of the speed, and the line that says so."""

    bound: str  # simulation, learning, the host or memory; empty: an iteration in one graph
    because: str
    alone: str = ""

    @property
    def line(self) -> str:
        """The line for people."""
        return f"bound by {self.bound}{self.alone}: {self.because}" if self.bound else ""


def verdict(
    shares: dict[str, float],
    *,
    cores: float | None = None,
    available: int | None = None,
    pages: float = 0.0,
    full: float = 0.0,
    launching: float | None = None,
) -> Verdict:
    """Find the bound of a training's speed.

    Args:
        shares: of the time: physics, environment, policy, update, and perhaps other.
        cores: busy on average; None on CUDA.
        available: cores that the process may use; those of this machine unless given.
        pages: that were read from the disk because memory is short [1/s].
        full: share of the GPU's memory in use.
        launching: share of the time in which the host launched the GPU's work.
    """
    if pages > PAGES:
        return Verdict("memory", f"{pages:,.0f} pages a second come from the disk")
    if full > FULL:
        return Verdict("memory", f"{full:.0%} of the GPU's is in use")
    if launching is not None and launching > LAUNCHING:
        return Verdict("the host", f"it launches kernels for {launching:.0%} of the time")
    groups = CUDA if cores is None else CPU
    sums = {name: sum(shares.get(part, 0.0) for part in parts) for name, parts in groups.items()}
    bound = max(sums, key=lambda name: sums[name])
    if not sums[bound]:
        return Verdict("", "")  # a whole iteration in one graph has no parts
    line = f"{TAKES[bound]} {sums[bound]:.0%} of the time"
    if cores is None:
        return Verdict(bound, line)
    available = available or cores_available()
    alone = " on one core" if bound != "the host" and cores < ONE and available > 1 else ""
    busy = f"{cores:.1f} of {available} cores busy"
    return Verdict(bound, f"{line}, {busy}", alone)


# Why: docs/decisions/cluster.md
def cluster_verdict(row: dict[str, float]) -> Verdict:
    """Find the bound of a training whose worlds are in other processes, of a row of its log.

    A slow link makes both sides wait at once: the learner for packets, and the actors for requests.
    Both wait for at least `wait + idle - 1` of the time, even where the busiest actor is concerned.
    If that is more than the share in which it collects, `1 - idle`, the link bounds the speed.
    """
    wait, idle = row["share/actors"], row["cluster/idle"]
    packets, missing = row.get("share/packets", 0.0), row["cluster/missing"]
    said = f"the learner waits {wait:.0%} of the time, and the busiest actor {idle:.0%}"
    if packets > max(wait, 1 - wait - packets):
        line = f"it reads packets for {packets:.0%} of the time: choose fewer cluster.actors"
        return Verdict("packets", f"{line}, or raise num_steps")
    if wait < WAITS:
        return Verdict("the learner", f"{said}: fewer cluster.actors do")
    if missing:
        line = f"{missing:.0f} of them ended or gave nothing: look at their machines"
        return Verdict("missing actors", line)
    if 2 * idle + wait > 2:
        return Verdict("the network", f"{said}: raise num_steps, or take a faster link")
    if row["cluster/slowest"] > SLOW:
        times = f"one takes {row['cluster/slowest']:.1f} times as long as others"
        return Verdict("one slow actor", f"{times}: look at its machine")
    return Verdict("the actors", f"{said}: raise cluster.actors")


def pages_read() -> int:
    """Pages that this process has waited for the disk for."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
