"""The server of policies: what it answers, to whom, and that a swap loses nothing."""

import asyncio

import numpy as np

from gpusim_rl.commands.play_mode import DEMO
from gpusim_rl.deploy.runtime import Policy
from tests.serving import ask, draw_readings, open_server, runtime_targets, session


def test_answers_are_those_of_the_runtime():
    """Of sessions that come and go, at once and one by one, each answer is that of `Policy.act`."""
    policy, rng = Policy(DEMO), np.random.default_rng(0)

    async def drive(address: str, steps: list, pause: float) -> list[np.ndarray]:
        await asyncio.sleep(pause)
        async with session(address) as (client, about):
            assert about["readings"] == policy.needs and about["actions"]["kp"]
            return [(await ask(client, step))["actions"] for step in steps]

    async def run() -> None:
        async with open_server(DEMO) as (server, address):
            robots = [draw_readings(policy, rng, 5 + i) for i in range(12)]
            jobs = [drive(address, steps, i % 3 * 0.02) for i, steps in enumerate(robots)]
            for steps, answers in zip(robots, await asyncio.gather(*jobs), strict=True):
                np.testing.assert_array_equal(answers, runtime_targets(policy, steps))
            assert server.metrics.steps == sum(map(len, robots))
            assert server.metrics.batches < server.metrics.steps and server.sessions == 0

    asyncio.run(run())
