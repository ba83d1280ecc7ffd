"""The line that says what bounds a training."""

import pytest

from gpusim_rl.training.bottleneck import cluster_verdict, verdict

EVEN = {"physics": 0.3, "environment": 0.2, "policy": 0.1, "update": 0.4}


@pytest.mark.parametrize(
    "shares, bound",
    [
        ({"physics": 0.6}, "simulation"),
        ({"physics": 0.3, "environment": 0.25, "policy": 0.1}, "learning"),  # its two parts
        ({"environment": 0.3, "other": 0.3, "policy": 0.0, "update": 0.1}, "the host"),
        ({"physics": 0.0, "environment": 0.0, "policy": 0.0, "update": 0.0}, ""),
    ],
)
def test_the_largest_group_bounds(shares, bound):
    """On the CPU: physics, or policy and update, or the environment and what has no name."""
    said = verdict(EVEN | shares, cores=1.9, available=2)
    assert said.bound == bound and (f"bound by {bound}: " in said.line or not bound)
    assert not bound or said.line.endswith("% of the time, 1.9 of 2 cores busy")


def test_one_core_is_said():
    """If one core works of several, the line says so, unless the host waits anyway."""
    physics = EVEN | {"physics": 0.9}
    assert "simulation on one core: " in verdict(physics, cores=1.0, available=2).line
    assert " on one core" not in verdict(physics, cores=1.0, available=1).line
    assert " on one core" not in verdict(physics, cores=1.8, available=2).line
    line = verdict(EVEN | {"environment": 0.9}, cores=0.2, available=2).line
    assert line.startswith("bound by the host: ") and line.endswith("0.2 of 2 cores busy")


def test_on_a_gpu():
    """The environment is simulation there; the host counts if it launches kernels all the time."""
    shares = EVEN | {"environment": 0.4}
    assert verdict(shares).line == "bound by simulation: physics takes 70% of the time"
    assert verdict(shares, launching=0.97).bound == "the host"
    assert verdict(shares, launching=0.4, full=0.3).bound == "simulation"


def test_memory_comes_first():
    """Pages from the disk, or a full GPU, are said whatever the shares are."""
    assert verdict(EVEN, cores=1.0, pages=5000.0).line == (
        "bound by memory: 5,000 pages a second come from the disk"
    )
    assert verdict(EVEN, full=0.97).line == "bound by memory: 97% of the GPU's is in use"


@pytest.mark.parametrize(
    "wait, packets, idle, slowest, missing, bound, key",
    [
        (0.05, 0.05, 0.7, 1.0, 0, "the learner", "cluster.actors"),  # actors may not run ahead
        (0.05, 0.0, 0.7, 4.0, 1, "the learner", "cluster.actors"),  # it does not wait for them
        (0.7, 0.0, 0.1, 1.1, 0, "the actors", "cluster.actors"),
        (0.7, 0.0, 0.3, 1.1, 0, "the actors", "cluster.actors"),  # in step they wait for the update
        (0.4, 0.0, 0.75, 1.1, 0, "the actors", "cluster.actors"),  # of them both wait 0.15
        (0.7, 0.0, 0.9, 1.1, 0, "the network", "num_steps"),  # both sides wait
        (0.2, 0.6, 0.8, 1.1, 0, "packets", "num_steps"),
        (0.7, 0.0, 0.2, 4.0, 0, "one slow actor", "its machine"),
        (0.7, 0.0, 0.2, 1.0, 2, "missing actors", "2 of them"),
    ],
)
def test_the_bound_of_a_cluster(wait, packets, idle, slowest, missing, bound, key):
    """Waits and idle times of actors say who bounds the speed; the line names what to change."""
    row = {"share/actors": wait, "share/packets": packets, "cluster/missing": missing}
    said = cluster_verdict(row | {"cluster/idle": idle, "cluster/slowest": slowest})
    assert said.bound == bound and said.line.startswith(f"bound by {bound}: ") and key in said.line
