"""task.hide: the actor does not observe a term, the critic does."""

import pytest
import torch

from tests.command_lines import refused
from tests.worlds import make_env


@pytest.mark.parametrize("past", [{}, {"history": {"cart": 3}}, {"observation_delay": (2, 2)}])
def test_a_hidden_term_is_the_critics(past):
    """Without noise, which has other columns, the actor observes what it observes without the key,
    but for the hidden columns; the critic observes the same."""
    plain, hiding = (make_env("cartpole", 4, hide=hide, **past) for hide in ((), ("speeds",)))
    for env in (plain, hiding):
        env.measurement.amplitudes.zero_()
        env.update_observations(torch.ones(4, dtype=torch.bool))
    for _ in range(3):
        assert torch.equal(plain.observation.critic, hiding.observation.critic)
        assert torch.equal(plain.observation.actor[:, :-2], hiding.observation.actor)
        for env in (plain, hiding):
            env.step(torch.ones(4, 1))


def test_a_mistake_is_one_line(tmp_path):
    """An unknown term is refused with those that there are; so is hiding all of them."""
    for hide, says in (
        ("[speed]", "task.hide: 'speed' is no term (terms: cart, pole, speeds)"),
        ("[cart,pole,speeds]", "task.hide names every term"),
        ("speeds", "expected a list"),
    ):
        assert says in refused("train.py", "task=cartpole", f"task.hide={hide}", cwd=tmp_path)


def test_no_reading_left():
    """Hiding all that is measured is refused, though the command and the clock remain."""
    with pytest.raises(ValueError, match="use no reading"):
        make_env("quadruped", 4, hide=("gyro", "up", "joints", "speeds"))


def test_noise_of_a_hidden_reading():
    """A curriculum may write the noise of a reading that only a hidden term uses."""
    env = make_env("cartpole", 4, hide=("speeds",))
    env.scheduled_number("task.noise.joint_vel").fill_(3.0)
    assert (env.measurement.amplitudes < 3.0).all()
