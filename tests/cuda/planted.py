"""Defects planted one by one in the cartpole's training: the checks of options.py find each.

    bash tests/cuda/run planted.py [defect …]

Prints what was found. Ends with 1 if a defect was not.
"""

import os
import sys

import options
import torch

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.core.record import Record

PACK, NORMALIZE, ITERATION = PPO.pack_samples, PPO.update_normalizers, Iteration.iteration


def host_read(ppo: PPO, rollout: Record) -> None:
    """A number is read on the host within a captured function."""
    PACK(ppo, rollout)
    ppo.stats.add_(0.0 * ppo.stats[0].item())


def default_stream(ppo: Iteration) -> None:
    """A tensor is made on the default stream."""
    ITERATION(ppo)
    with torch.cuda.stream(torch.cuda.default_stream()):
        ppo.planted = torch.ones(4, device="cuda")


def freed_after_capture(ppo: PPO, rollout: Record) -> None:
    """A graph reads a tensor that is freed once the graph was captured."""
    ppo.planted = vars(ppo).get("planted", torch.ones(len(ppo.stats), device="cuda"))
    PACK(ppo, rollout)
    ppo.stats.mul_(ppo.planted)
    if torch.cuda.is_current_stream_capturing():
        del ppo.planted


def pageable_copy(ppo: Iteration) -> None:
    """An iteration copies from memory that is not pinned."""
    ITERATION(ppo)
    ppo.learner.stats.add_(torch.zeros(len(ppo.learner.stats)).to("cuda"))


def allocation(ppo: Iteration) -> None:
    """Each iteration keeps a little more memory."""
    ITERATION(ppo)
    vars(ppo).setdefault("planted", []).append(torch.empty(4, device="cuda"))


def host_counter(ppo: PPO, rollout: Record) -> None:
    """A captured function uses a number that the host counts."""
    ppo.planted = vars(ppo).get("planted", 0) + 1
    NORMALIZE(ppo, rollout)
    ppo.spec.iteration.add_(ppo.planted)


# Where each defect is planted, and what says that it is there.
PLACES = {
    host_read: ("pack_samples", "_local_scalar_dense.default in a capture"),
    default_stream: ("iteration", "kernel on stream 0"),
    freed_after_capture: ("pack_samples", "freed after capture"),
    pageable_copy: ("iteration", "copy HtoD pageable"),
    allocation: ("iteration", "'allocations'"),
    host_counter: ("update_normalizers", "'iteration'"),
}


def main(names: list[str]) -> int:
    """Plants each defect. Returns how many were not found."""
    missed = 0
    for defect, (method, sign) in PLACES.items():
        if names and defect.__name__ not in names:
            continue
        owner = Iteration if method == "iteration" else PPO
        original = getattr(owner, method)
        setattr(owner, method, defect)
        wrong = options.problems("cartpole")
        setattr(owner, method, original)
        missed += sign not in str(wrong)
        verdict = "found" if sign in str(wrong) else "MISSED"
        print(f"{defect.__name__}: {verdict}: {wrong}", flush=True)
    return missed


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(min(status, 1))
