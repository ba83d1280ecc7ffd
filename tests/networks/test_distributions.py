"""Distributions of actions beside torch's own."""

import torch
from torch.distributions import Normal, kl_divergence

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip, MirrorModule
from gpusim_rl.networks.distributions import Gaussian


def drawn(seed: int, *, shared: bool) -> Gaussian:
    """Gaussians of 50 states and three actions, with one deviation for all states or one each."""
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(50, 3, generator=g)
    return Gaussian(mean, 0.1 + torch.rand(*([3] if shared else [50, 3]), generator=g))


def test_a_gaussian_is_torchs():
    """Log-probability, entropy and KL are those of torch.distributions, the mode is the mean."""
    for shared in (True, False):
        new, old = drawn(1, shared=shared), drawn(2, shared=False)
        theirs = Normal(new.mean, new.std)
        x = 2 * old.mean
        torch.testing.assert_close(new.log_prob(x), theirs.log_prob(x).sum(1))
        torch.testing.assert_close(new.entropy().expand(50), theirs.entropy().sum(1))
        want = kl_divergence(Normal(old.mean, old.std), theirs).sum(1)
        torch.testing.assert_close(new.kl(old), want)
        assert new.mode is new.mean


def test_a_deviation_has_no_sign_in_a_mirror():
    """The image's log-probability of the image of an action is that of the action."""
    action = Flip((1, 0, 2), (-1.0, -1.0, 1.0))
    look = {name: MirrorModule(flip) for name, flip in Gaussian.flips(action).items()}
    new = drawn(3, shared=False)
    image = Gaussian(look["mean"](new.mean), look["std"](new.std))
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(image.log_prob(MirrorModule(action)(x)), new.log_prob(x))


def test_samples_have_its_mean_and_deviation():
    """Over many worlds; each world draws its own."""
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.1, 3.0])
    x = Gaussian(mean.expand(20000, -1), std).sample(Rng(1, torch.arange(20000)))
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.08)
    torch.testing.assert_close(x.std(0), std, rtol=0.02, atol=0)
