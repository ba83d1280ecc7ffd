"""The network of an actor, computed by another process over memory that both have."""

import copy
import os
import pickle
import time
from collections.abc import Callable
from threading import Thread

import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.cluster.central import ASKED, CentralCompute, Exchange, InferenceServer
from tests.command_lines import TINY
from tests.worlds import make_config

WORLDS = 16


def ask(exchange, policy, version: int, actor: int, life: int) -> Callable[[], None]:
    """Let an actor ask for random worlds. Returns what checks its answer: the policy's, by bits."""
    inputs = {"obs": torch.randn(WORLDS, len(policy.actor.normalizer.mean))}
    inputs["critic"] = torch.randn(WORLDS, len(policy.critic_normalizer.mean))
    memory = {k: torch.randn(x.shape) for k, x in policy.blank_memory(WORLDS).items()}
    expected, after = policy.compute(inputs, memory, None)
    compute, results = CentralCompute(pickle.loads(pickle.dumps(exchange)), actor, life), []
    compute.version = version
    thread = Thread(target=lambda: results.append(compute(inputs, memory, None)), daemon=True)
    thread.start()
    while (
        exchange.tensors["counts"]["tickets"][actor, ASKED] >> 32 != life or not compute.number & 1
    ):
        time.sleep(0.01)

    def check() -> None:
        thread.join(20)
        ((head, memory),) = results
        assert torch.equal(head, expected) and memory.keys() == after.keys()
        assert all(torch.equal(x, after[name]) for name, x in memory.items())

    assert not results
    return check


@torch.no_grad()
def test_an_answer_is_what_the_network_of_that_version_gives(monkeypatch):
    """To those who ask at once, and to whom a server that has ended did not answer."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    cfg = make_config("task=cartpole", *TINY, "algo.memory=gru", "algo.memory_size=8")
    it = make_iteration(cfg, WORLDS)
    live = {k: x.tensor for k, x in it.learner.tensors().items() if k.startswith("policy/")}
    old, policy = copy.deepcopy(it.policy), it.policy
    exchange = Exchange(it.env, policy, [slice(0, WORLDS), slice(WORLDS, 2 * WORLDS)], versions=2)
    exchange.put(4, live)
    for x in policy.parameters():
        x.mul_(1.5)
    exchange.put(5, live)
    server = InferenceServer(cfg.plain, policy, pickle.loads(pickle.dumps(exchange)), "cpu")
    checks = [ask(exchange, old, 4, 0, life=1), ask(exchange, policy, 5, 1, life=1)]
    server.answer([0, 1])
    for check in checks:
        check()
    assert exchange.tensors["counts"]["served"].tolist() == [2, 2]  # of two versions
    checks = [ask(exchange, policy, 5, actor, life=2) for actor in (0, 1)]
    os.read(exchange.files[1], 4096)  # by a server that ends then
    server.answer([0, 1])
    for check in checks:
        check()
    assert exchange.tensors["counts"]["served"].tolist() == [4, 3]
    exchange.close()
