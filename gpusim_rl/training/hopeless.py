"""Whether a training will not succeed: what stop_when=hopeless asks after each row of metrics."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

FIRST, BEFORE = 0.35, 0.5  # shares of the iterations between which a training may be given up
RISES = 1.5  # standard errors by which the newer returns are above the older
LEAST = 0.3  # of the range of all returns, which such a rise gains by the last iteration
LASTING = 0.1  # share of the iterations for which no rise was seen
SUCCESS = 0.05  # in an evaluation, with which there is hope
FROZEN = 1e-7  # KL divergence of an update [nat] that changes nothing
ROWS = 6  # at least, of which a rise is judged


def hopeless(rows: Sequence[Mapping[str, float]], iterations: int) -> str:
    """Why a training of so many iterations is given up after these rows; empty: it is not.

    It must have been evaluated without success, between a third and a half of its iterations. And
    for some time its return did not rise, or rose by too little, or its updates changed nothing.
    """
    now = int(rows[-1]["iteration"])
    if not FIRST * iterations <= now <= BEFORE * iterations:
        return ""
    found = [x["success"] for x in rows if "success" in x]
    if not found or max(found) >= SUCCESS:
        return ""
    lasting = [x for x in rows if x["iteration"] > now - max(3, LASTING * iterations)]
    kl = [x["approx_kl"] for x in lasting if "approx_kl" in x]
    frozen = bool(kl) and max(map(abs, kl)) < FROZEN
    returns = [x.get("return", math.nan) for x in rows]
    ends = range(len(rows) - len(lasting) + 1, len(rows) + 1)
    if not frozen and any(rises(returns[:end], iterations / now - 1) for end in ends):
        return ""
    values = [x for x in returns[len(rows) // 2 :] if math.isfinite(x)]
    cause = "updates change nothing" if frozen else "the return no longer rises"
    mean = f"{fmean(values):.3g}" if values else "unknown"
    return f"hopeless: no success in {len(found)} evaluations, and {cause} (mean {mean})"


def rises(values: Sequence[float], left: float) -> bool:
    """Whether returns still rise: the last sixth is clearly above both before it, and such rises,
    shrinking at their pace of now, gain LEAST of the range by the last iteration.

    left: iterations that are to come, in those done.
    """
    known = [x for x in values if math.isfinite(x)]
    n = len(known) // 6
    if n < ROWS // 2:
        return len(values) < 3 * ROWS  # too few to tell; none at all after many is no rise
    first, old, new = known[-3 * n : -2 * n], known[-2 * n : -n], known[-n:]
    error = math.hypot(stdev(old), stdev(new)) / math.sqrt(n)
    rise, before = fmean(new) - max(fmean(old), fmean(first)), fmean(old) - fmean(first)
    if rise <= RISES * error:
        return False
    pace = min(rise / before, 1.0) if before > 0 else 1.0
    gain = rise * sum(pace**k for k in range(1, 1 + round(6 * left)))
    return gain > LEAST * (max(known) - min(known))
