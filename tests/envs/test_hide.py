"""task.hide: the actor does not observe a term, the critic does."""

import pytest
import torch

from gpusim_rl.assembly.joining import RunSpec, make_spec
from tests.worlds import make_env, refusal


@pytest.mark.parametrize("past", [{}, {"history": {"cart": 3}}, {"observation_delay": (2, 2)}])
def test_a_hidden_term_is_the_critics(past):
    """But for the hidden columns the actor observes the same, and the critic all."""
    plain, hiding = (make_env("cartpole", 4, hide=hide, **past) for hide in ((), ("speeds",)))
    for env in (plain, hiding):
        env.measurement.amplitudes.zero_()
        env.update_observations(torch.ones(4, dtype=torch.bool))
    for _ in range(3):
        assert torch.equal(plain.observation["critic"], hiding.observation["critic"])
        assert torch.equal(plain.observation["actor"][:, :-2], hiding.observation["actor"])
        for env in (plain, hiding):
            env.step(torch.ones(4, 1))


@pytest.mark.parametrize(
    "task, hide, says",
    [
        ("cartpole", "[speed]", "task.hide: 'speed' is no term (terms: cart, pole, speeds)"),
        ("cartpole", "[cart,pole,speeds]", "task.hide names every term"),
        ("cartpole", "speeds", "expected a list"),
        ("quadruped", "[gyro,up,joints,speeds]", "use no reading"),  # but command and clock
    ],
)
def test_a_mistake_is_one_line(task, hide, says):
    """An unknown term is refused with those that there are; so is hiding all that is measured."""
    assert says in refusal(f"task={task}", "device=cpu", f"task.hide={hide}")


def test_the_columns_of_a_term():
    """A learner knows the columns of each term in both views."""
    env = make_env("quadruped", 4, hide=("gyro",), history={"up": 3})
    terms = make_spec(env, RunSpec(num_steps=4, graph="off", threads=1)).term_widths
    assert [sum(widths.values()) for widths in terms.values()] == [
        env.views[x].shape[0] for x in terms
    ]
    assert terms["actor"]["gyro"] == 0 and terms["actor"]["up"] == 3 * env.term_widths["up"]
    state = env.current_state()
    shown = env.task.observe(state) | env.task.privileged(state)
    parts = env.observation["critic"].split([*terms["critic"].values()], 1)
    assert [*terms["critic"]] == [*shown]
    assert all(map(torch.equal, parts, shown.values()))


def test_noise_of_a_hidden_reading():
    """A curriculum may write the noise of a reading that only a hidden term uses."""
    env = make_env("cartpole", 4, hide=("speeds",))
    env.scheduled_number("task.noise.joint_vel").fill_(3.0)
    assert (env.measurement.amplitudes < 3.0).all()
