"""Checks of the sections `gate` and `ab` of a configuration."""

from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core import ranges
from gpusim_rl.deploy.onboard.verdict import Json

# ranges: least and greatest
PAIRS = ("late", "slope", "friction", "payload", "contact.solref")
VARIANTS = ("fp16", "int8")
ENGINES = ("native", "warp", "mjx")
MAX_ROBOT_SECONDS = 1_000_000  # of a scenario, whose plan is held in memory
# Keys of play.py that each mode uses, and what is meant by some of the others.
USED = {
    "gate": ("mode", "run", "onnx", "out", "judged", "variants", "seed", "threads", "gate"),
    "ab": ("mode", "onnx", "out", "seed", "threads", "gate", "ab"),
}
PROOFS = ("better", "not_worse")
MEANT = {"seconds": "gate.seconds=", "episodes": "gate.robots="}


def usual_settings() -> Json:
    """The section `gate` as it comes."""
    return compose_plain("play", [])["gate"]


def check_settings(cfg: Json) -> None:
    """ValueError for the first value of the sections `gate` and `ab` that is not allowed."""
    ranges.check(cfg, table=ranges.GATE)
    if cfg["ab"]["prove"] not in PROOFS:
        raise ValueError(f"ab.prove={cfg['ab']['prove']}: choose one of {', '.join(PROOFS)}")
    for key in PAIRS:
        pair = flatten(cfg["gate"])[key]
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] > pair[1]:
            raise ValueError(f"gate.{key}={pair}: expected [least, greatest]")
    if (engine := cfg["gate"]["sim"]) not in ENGINES:
        raise ValueError(f"gate.sim={engine}: choose one of {', '.join(ENGINES)}")
    names = cfg["gate"]["reported"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"gate.reported={names!r}: expected names of scenarios, as a list")
    short, long = cfg["gate"], cfg["gate"]["endurance"]
    check_size("gate.robots", short["robots"], short["seconds"])
    check_size("gate.endurance.robots", long["robots"], 60 * long["minutes"])


def check_compared(cfg: Json) -> None:
    """ValueError if a comparison alone is to leave scenarios out."""
    if (names := cfg["gate"]["reported"]) not in (usual_settings()["reported"], []):
        raise ValueError(f"A/B compares all scenarios: it does not use gate.reported={names}")


def check_size(key: str, robots: int, seconds: float) -> None:
    """ValueError if the plan of robots over seconds might not fit into memory."""
    if robots * seconds > MAX_ROBOT_SECONDS:
        most = f"at most {MAX_ROBOT_SECONDS} robot-seconds are tried"
        raise ValueError(f"{key}={robots} for {seconds:g} s: {most}")


def check_keys(cfg: Json) -> None:
    """ValueError for the first key that the mode does not use, and that differs from usual."""
    mode, usual = cfg["mode"], compose_plain("play", [])
    for key, value in cfg.items():
        if key not in USED[mode] and value != usual[key]:
            meant = f": is {MEANT[key]} meant?" if key in MEANT and mode == "gate" else ""
            raise ValueError(f"mode={mode} does not use {key}={value}{meant}")


def check_variants(names: object) -> None:
    """ValueError unless the variants= exist, each once; null is none."""
    expected = f"variants={names}: expected a list of {' and '.join(VARIANTS)}"
    if names is None:
        return
    if not isinstance(names, list) or not names or [x for x in names if x not in VARIANTS]:
        raise ValueError(expected)
    if len({*names}) < len(names):
        raise ValueError(f"{expected}, each once")
