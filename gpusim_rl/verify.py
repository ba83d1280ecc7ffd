"""Whether a run is what its configuration makes: `python -m gpusim_rl.verify <run> [iterations]`.

A run keeps hashes of every tensor of its state (physics, task, networks, optimiser, counters) after each of its first
iterations. This trains them again, on this machine, and says where the two part. What to expect where: docs/determinism.md.
Exits with 0 if all agree, 1 if they part, 2 for a mistake.
"""

import json
import sys
from pathlib import Path

from gpusim_rl import config, resume
from gpusim_rl.assemble import make_ppo
from gpusim_rl.disk import read_text
from gpusim_rl.run import Run, versions
from gpusim_rl.saver import HASHED, digests


def main(words: list[str]) -> None:
    """Train again, compare, say what was found."""
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        raise SystemExit(0 if words else 2)
    if len(words) > 2 or (len(words) == 2 and not words[1].isdecimal()):
        config.fail(f"{' '.join(words)}: expected a run directory, and perhaps a number of iterations")
    with config.one_line():
        run = Run.open(Path(words[0]))
        cfg = resume.trained(run)
        rows = list(run.rows("hashes.jsonl"))
        kept = {row["iteration"]: row["sha256"] for row in rows if isinstance(row.get("sha256"), dict)}
        count = min(int(words[1]) if len(words) == 2 else HASHED, max(kept, default=0))
        if count < 1:
            raise ValueError(f"{run.path} keeps no hashes of its first iterations")
        for row in rows:
            if "changed" in row:
                says = f"{run.path} was continued with other values from iteration {row['iteration']} on"
                raise ValueError(f"{says} ({str(row['changed'])[:200]}): its config.yaml is not what began it")
        ppo = make_ppo(cfg)
    for line in differences(run):
        print(line)
    if ppo.schedule.judged and count > cfg["eval_every"]:
        count = cfg["eval_every"]
        print(f"the curriculum goes by evaluations, which are not repeated here: up to iteration {count}")
    for i in range(1, count + 1):
        ppo.iteration()
        if i not in kept:
            continue
        found = digests({name: value.cpu() for name, value in ppo.state().items()})
        wrong = [name for name in sorted(found.keys() | kept[i].keys()) if found.get(name) != kept[i].get(name)]
        if wrong:
            rest = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            print(f"iteration {i}: {len(wrong)} of {len(found)} tensors differ: {', '.join(wrong[:5])}{rest}")
            raise SystemExit(1)
        print(f"iteration {i}: all {len(found)} tensors agree, bit by bit")


def differences(run: Run) -> list[str]:
    """What of this machine and its packages is not that of the run."""
    try:
        then = json.loads(read_text(run.path / "versions.json"))
        return [f"{key}: {then.get(key)} there, {now} here" for key, now in versions().items() if then.get(key) != now]
    except (OSError, ValueError, AttributeError):
        return ["versions.json cannot be read"]


if __name__ == "__main__":
    main(sys.argv[1:])
