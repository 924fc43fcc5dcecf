"""Packages of suites of environments: what tests of them share."""

import functools

import pytest

from discorl import envs
from discorl.types import UserError


def needs(*packages):
    """Skips the test if one of the packages, or Qt for EnvPool, is not installed."""
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    if "envpool" in packages:
        try:
            envs.make("procgen:coinrun")
        except UserError as error:
            pytest.skip(str(error))


def shrink_crafter(monkeypatch):
    """Crafter's worlds are so small that it takes a tenth of the time to make them."""
    import crafter

    init = functools.partialmethod(crafter.Env.__init__, area=(20, 20))
    monkeypatch.setattr(crafter.Env, "__init__", init)
