"""The checker of environments, and the command that lists, shows and checks them."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Mortal, Obedient, Truncated

from discorl import cli, envs
from discorl.envs import Environment, Step, conformance
from discorl.envs.conformance import native
from discorl.envs.families import REGISTRY as FAMILIES
from discorl.envs.suites import SUITES, UNAVAILABLE, Suite
from discorl.types import UserError

# --- the checker ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [Truncated(limit=3), Mortal(), Obedient(), envs.Catch(rows=4, columns=3), *FAMILIES],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_sound_environments_keep_the_contract(environment):
    findings = conformance.check(envs.make(environment), steps=12, count=3)
    assert [finding.check for finding in findings] == [
        "declaration",
        "types",
        "determinism",
        "values",
        "by hand",
        "ends",
    ]
    assert [finding for finding in findings if not finding.ok] == []


@dataclasses.dataclass(frozen=True)
class Flawed(Environment):
    """Counts to three; with one flaw at a time."""

    flaw: str

    num_actions = 2
    observation = jax.ShapeDtypeStruct((), jnp.float32)

    def reset(self, key):
        dtype = jnp.int32 if self.flaw == "dtype" else jnp.float32
        return jnp.int32(0), jnp.zeros((), dtype)

    def step(self, state, action, key):
        state = state + 1
        done = state == 3
        if self.flaw == "resets itself":
            state = jnp.where(done, 0, state)
        if self.flaw == "state":
            state = state.astype(jnp.float32)
        observation = state.astype(jnp.float32)
        if self.flaw == "nan":
            observation = observation / (3.0 - state)
        reward = jnp.float32(1) if self.flaw != "reward" else jnp.int32(1)
        if self.flaw == "tuple":
            return state, (observation, reward, done, done)
        if self.flaw == "raises":
            raise ValueError("out of coffee")
        if self.flaw == "branches" and done:
            reward = 2 * reward
        return state, Step(observation, reward, done, jnp.zeros((), bool))


@pytest.mark.parametrize(
    ("flaw", "check", "detail"),
    [
        ("dtype", "types", "reset's observation is [] int32; expected [] float32"),
        ("state", "types", "step's state is [] float32; expected [] int32"),
        ("reward", "types", "step's reward is [] int32; expected [] float32"),
        (
            "tuple",
            "types",
            "step returned a tuple of array, tuple; expected a state and",
        ),
        ("raises", "types", "step raised ValueError: out of coffee (test_environments.py, line "),
        ("branches", "types", "; use jnp.where or jax.lax.cond"),
        ("nan", "values", "observation holds NaN or infinity"),
        ("resets itself", "ends", "must not reset itself"),
    ],
)
def test_flaws_are_found(flaw, check, detail):
    failed = [each for each in conformance.check(Flawed(flaw), steps=5, count=2) if not each.ok]
    assert [each.check for each in failed] == [check]
    assert detail in failed[0].detail


def test_ends_that_nobody_saw_are_not_checked(capsys, monkeypatch):
    *others, ends = conformance.check(Flawed("resets itself"), steps=2, count=2)
    assert (ends.check, ends.verdict) == ("ends", "not checked")
    assert ends.detail == "no episode ended within 2 steps of random play"
    assert {finding.verdict for finding in others} == {"ok"}
    monkeypatch.setitem(envs.REGISTRY, "flawed", Flawed)
    status, out, _ = run(capsys, "check", "flawed:flaw=none", "--steps", "2")
    assert status == 0
    assert "not checked  ends " in out
    assert out.splitlines()[-1].endswith("keeps the contract, as far as it was checked")


@pytest.mark.parametrize(("limit", "ends"), [(3, (0, 2)), (0, (2, 0))])
def test_ends_are_counted(limit, ends):
    environment = Truncated(limit=limit) if limit else Flawed("none")
    finding = conformance.check(environment, steps=7, count=2)[-1]
    terminated, truncated = ends
    assert finding.detail == (
        f"of 2 episodes {terminated} terminated and {truncated} were truncated "
        "within 7 steps of random play"
    )


class Unlicensed(Flawed):
    @property
    def num_actions(self):
        raise OSError("no licence")


def test_a_declaration_that_raises_is_found():
    (finding,) = conformance.check(Unlicensed(""))
    line = Unlicensed.num_actions.fget.__code__.co_firstlineno + 2
    assert vars(finding) == {
        "check": "declaration",
        "ok": False,
        "detail": f"it raised OSError: no licence (test_environments.py, line {line})",
        "checked": True,
    }


def test_a_batch_that_differs_from_one_environment_is_found():
    environment, key = Mortal(), jax.random.key(0)
    first, step, _ = jax.device_get(native._play_many(environment, key, 6, 2))
    assert native._by_hand(environment, first, step, key, 2).ok
    changed = dataclasses.replace(step, reward=step.reward + np.float32(1e-3))
    assert native._by_hand(environment, first, changed, key, 2).detail == "step 0 differs"
    assert not native._by_hand(environment, first + 1, step, key, 2).ok


# --- the command line -----------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["envs", *arguments])
    out = capsys.readouterr()
    return exit_.value.code, out.out, out.err


def test_the_command_lists_and_shows(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert "catch" in out
    for suite in SUITES.values():
        state = "missing" if suite.missing() else "installed"
        item = ":ITEM" if suite.default is None else "[:ITEM]"
        (line,) = [line for line in out.splitlines() if line.startswith(f"{suite.name}{item} ")]
        assert state in line
        assert suite.requirement in line
        assert (suite.install in line) == (state == "missing")
    for name, reason in UNAVAILABLE.items():
        assert re.search(f"^{name} +unavailable +{re.escape(reason)}$", out, re.MULTILINE)
    status, out, _ = run(capsys, "catch:rows=5", "--json")
    shown = json.loads(out)
    assert shown["observation"] == "[5, 8] float32"
    assert shown["actions"] == 3
    np.testing.assert_allclose(shown["reference"], [-0.75, 1])
    assert shown["train"] == "discorl train --env catch:rows=5 --preset small"
    status, _, err = run(capsys, "cach")
    assert (status, "did you mean 'catch'?" in err) == (2, True)


def test_the_command_checks(capsys, monkeypatch):
    status, out, _ = run(capsys, "check", "catch:rows=4", "--steps", "5")
    assert (status, out.splitlines()[-1]) == (0, "catch:rows=4 keeps the contract")
    monkeypatch.setitem(envs.REGISTRY, "flawed", Flawed)
    for flaw in ("reward", "tuple", "raises"):
        status, out, err = run(capsys, "check", f"flawed:flaw={flaw}", "--steps", "5")
        assert (status, err) == (1, "")
        assert "FAILED  types" in out
        assert out.splitlines()[-1] == f"flawed:flaw={flaw} breaks the contract"


def test_what_cannot_be_played_is_refused(capsys):
    for option, message in (
        (("--steps", "0"), "steps is 0; expected from 1 to 1000000"),
        (("--steps", "-3"), "steps is -3; expected from 1 to 1000000"),
        (("--seed", "-1"), "seed is -1; expected from 0 to 2147483647"),
    ):
        status, _, err = run(capsys, "check", "catch", *option)
        assert (status, err) == (2, f"discorl: {message}\n")


def test_what_an_environment_of_ones_own_raises_is_told(capsys, monkeypatch):
    monkeypatch.setitem(envs.REGISTRY, "unlicensed", Unlicensed)
    status, _, err = run(capsys, "unlicensed:flaw=none")
    assert status == 2
    assert "it raised OSError: no licence (test_environments.py, line " in err
    assert "; see discorl envs check unlicensed:flaw=none" in err
    monkeypatch.setattr(Flawed, "reference", lambda self: "nonsense")
    monkeypatch.setitem(envs.REGISTRY, "flawed", Flawed)
    status, _, err = run(capsys, "flawed:flaw=none")
    assert (status, "reference() failed: TypeError" in err) == (2, True)


class Games:
    """An adapter."""

    @staticmethod
    def names():
        return ["chess", "go"]

    @staticmethod
    def make(item):
        return item


def test_a_suite_may_have_a_default(capsys, monkeypatch):
    monkeypatch.setattr(Suite, "adapter", lambda self: Games)
    suite = Suite("games", "host", "MIT", "games", default="go")
    assert (suite.make(), suite.make("chess")) == ("go", "chess")
    with pytest.raises(UserError, match="games needs an item; for example games:chess, games:go"):
        dataclasses.replace(suite, default=None).make()
    monkeypatch.setitem(SUITES, "games", suite)
    assert run(capsys, "games")[1] == "games:chess\ngames:go (the default: games)\n"


def test_the_documentation_says_how_to_install():
    text = (Path(__file__).parent.parent / "docs" / "how-to" / "environments.md").read_text()
    for suite in SUITES.values():
        assert f"discorl[{suite.name}]" in text, suite.name


class Plain(Environment):
    """What it observes is an attribute, not a property."""

    num_actions = 2

    def __init__(self, size: int | None) -> None:
        if size is not None:
            self.observation = jax.ShapeDtypeStruct((size,), jnp.float32)

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(2)

    def step(self, state, action, key):
        return state, Step(jnp.zeros(2), jnp.float32(1), jnp.array(True), jnp.array(False))


def test_an_observation_may_be_a_plain_attribute():
    assert all(finding.ok for finding in conformance.check_declaration(Plain(2)))
    (missing,) = conformance.check_declaration(Plain(None))
    assert not missing.ok
    assert "observation" in missing.detail
