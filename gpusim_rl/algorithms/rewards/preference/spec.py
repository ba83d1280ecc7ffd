"""A reward from answers, as a training knows it."""

from gpusim_rl.algorithms.learner import RewardSpec
from gpusim_rl.algorithms.rewards.preference.preference import Preference
from gpusim_rl.algorithms.rewards.preference.settings import Settings

SPEC = RewardSpec(make=Preference, settings=Settings, changeable=("weight", "task"))
