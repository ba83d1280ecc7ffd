"""What metrics are called in W&B and TensorBoard."""

from gpusim_rl.training.dashboard import Row

# Name in metrics.jsonl → name in W&B and TensorBoard. `…/*` renames all that begin so.
NAMES = {
    "return": "train/return",
    "length": "train/episode_length",
    "success": "train/success",
    "terminated": "train/terminated",
    "fault": "train/faults",
    "overflow": "train/overflows",
    "env_steps": "train/env_steps",
    "bad": "train/bad_iterations",
    "rollbacks": "train/rollbacks",
    "reward/*": "reward/*",
    "measure/*": "measure/*",
    "schedule/*": "schedule/*",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "loss/entropy",
    "approx_kl": "loss/approx_kl",
    "clipped": "loss/clip_fraction",
    "actor_norm": "loss/actor_grad_norm",
    "critic_norm": "loss/critic_grad_norm",
    "learning_rate": "loss/learning_rate",
    "std": "loss/action_std",
    "skipped": "loss/skipped_minibatches",
    "steps_per_s": "perf/steps_per_s",
    "time_s": "perf/time_s",
    "share/*": "perf/share/*",
    "cores": "perf/cores",
    "eval/*": "eval/*",
}


def public_name(name: str) -> str:
    """The name of a metric in W&B and TensorBoard; its own if `NAMES` lacks it."""
    group, slash, rest = name.partition("/")
    return NAMES.get(f"{group}/*", f"{group}/*")[:-1] + rest if slash else NAMES.get(name, name)


def public_row(row: Row) -> Row:
    """A row of metrics under the names of `NAMES`, without `iteration`, which is its step."""
    return {public_name(name): value for name, value in row.items() if name != "iteration"}
