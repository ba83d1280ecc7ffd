"""What the sections of a configuration tell beside their values."""

import pytest

from tests.worlds import make_config


def test_a_key_that_is_unknown():
    """`replace` refuses it by name."""
    with pytest.raises(ValueError, match="unknown key 'num_env'"):
        make_config("task=cartpole").replace({"num_env": 3})


@pytest.mark.parametrize(
    "words, limit",
    [
        (("cluster.max_lag=3",), 0),
        (("cluster=ray",), 1),
        (("cluster=ray", "cluster.max_lag=3"), 3),
        (("cluster=ray", "cluster.max_lag=0"), 0),
        (("cluster=ray", "cluster.max_lag=3", "cluster.sync=true"), 0),
    ],
)
def test_lag_limit(words, limit):
    """A policy is behind only where actors act ahead of the learner."""
    assert make_config("task=cartpole", *words).cluster.lag_limit == limit
