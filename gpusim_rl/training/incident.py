"""The report of a training that went wrong: report.json, and a file that play.py steps again."""

import json
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import program
from gpusim_rl.envs.env import Env
from gpusim_rl.runs.run import Run


def describe(
    env: Env, row: Tensor, iteration: int
) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """(one line, the entries of report.json, tensors) of the worst step.

    Args:
        env: of the training; row: from `env.worst_step.worst()`.
        iteration: that was logged.
    """
    worst = env.worst_step.read(row.cpu())
    terms = dict(zip(env.terms, worst.terms, strict=True))
    not_finite = [name for name, value in terms.items() if not abs(value) < 1e8]
    term = not_finite[0] if not_finite else max(terms, key=lambda name: abs(terms[name]))
    why = " and ".join(worst.why) or "no step was quarantined"
    line = (
        f"world {worst.world}, step {worst.step}: {why};"
        f" largest reward term {term} = {terms[term]:.4g}"
    )
    report = {"iteration": iteration, "world": worst.world, "step": worst.step, "why": worst.why}
    return line, report | {"term": term, "terms": terms}, worst.tensors


def write_report(
    run: Run, cfg: dict[str, Any], report: dict[str, Any], tensors: dict[str, Tensor]
) -> str:
    """Write report.json and repro.safetensors. Returns what to tell the user about them."""
    portable = run.portable(cfg)
    about = report | {key: portable[key] for key in ("task", "robot", "terrain", "task_code")}
    path = run.path / "repro.safetensors"
    try:
        run.json("report.json", report)
        write_whole(path, to_bytes(tensors, metadata={"gpusim_rl": json.dumps(about)}))
    except OSError as error:
        return f"the report cannot be written: {error.strerror}"
    return f"see it: {program('play')} repro={path}"
