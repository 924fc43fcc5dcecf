"""Checks of host environments."""

import functools
from typing import Any

import jax
import numpy as np

from discorl.envs.conformance.calls import Caller, Failed
from discorl.envs.conformance.findings import at, legal_actions, same, values
from discorl.envs.host.base import EnvironmentFailure, HostEnvironment, HostStep, HostVector
from discorl.types import PyTree
from discorl.types.findings import Finding, describe, judge, mismatch, not_checked

# First observations [E, ...], steps, and action masks [steps + 1, E, A] if the environment has any.
_Played = tuple[PyTree, list[HostStep], np.ndarray | None]


def check_host(environment: HostEnvironment, steps: int, count: int, seed: int) -> list[Finding]:
    """Plays, repeats the same episodes, and plays a single environment."""
    try:
        return _findings(environment, steps, count, seed)
    except Failed as failed:
        return [Finding("play", False, str(failed))]


def _findings(environment: HostEnvironment, steps: int, count: int, seed: int) -> list[Finding]:
    first, played, masks = _play(environment, steps, count, seed)
    types = _types(environment, first, played, count)
    if not types.ok:
        return [types]
    observations = jax.tree.map(lambda *x: np.stack(x), *[step.observation for step in played])
    findings = [types, values(observations, np.stack([step.reward for step in played]))]
    if masks is not None:
        ended = [(step.terminated | step.truncated) & ~step.first for step in played]
        findings.append(legal_actions(masks[1:], ~np.stack(ended)))
    if environment.deterministic:
        findings += _repeated(environment, (first, played, masks), count, seed)
    else:
        why = "the environment declares that the same seed may give different episodes"
        findings += [not_checked(check, why) for check in ("determinism", "by hand")]
    return [*findings, _ends(played)]


def _repeated(
    environment: HostEnvironment, played: _Played, count: int, seed: int
) -> list[Finding]:
    """Repeats the episodes, once as before and once with a single environment."""
    again = _play(environment, len(played[1]), count, seed)
    alone = _play(environment, len(played[1]), 1, seed)
    return [
        same("determinism", _rows(played), _rows(again), "the same seed gives the same episodes"),
        same(
            "by hand",
            _rows(played, slice(1)),
            _rows(alone),
            "one environment on its own sees what the first of several does",
        ),
    ]


def _play(environment: HostEnvironment, steps: int, count: int, seed: int) -> _Played:
    """Plays random legal actions; those of the first environment do not depend on the count."""
    generators = [np.random.default_rng([seed, index]) for index in range(count)]
    with Caller(environment.timeout, count, seed) as caller:
        vector = caller.call("start", lambda: environment.start(count, seed))
        if not isinstance(vector, HostVector):
            kind = type(vector).__name__
            raise Failed(f"start returned a {kind}; expected a HostVector")
        caller.at_end(vector.close)
        first = caller.call("reset", lambda: jax.tree.map(np.array, vector.reset()))
        played: list[HostStep] = []
        ask = functools.partial(_mask, environment, vector, count)
        masks = [caller.call("action_mask", ask)]
        for number in range(1, steps + 1):
            drawn = [_draw(generators[i], masks[-1][i]) for i in range(count)]
            act = functools.partial(_step, vector, np.array(drawn, np.int32))
            step = caller.call("step", act, number)
            if not isinstance(step, HostStep):
                kind = type(step).__name__
                raise Failed(f"step returned a {kind} at step {number}; expected a HostStep")
            played.append(step)
            masks.append(caller.call("action_mask", ask, number))
    return first, played, np.stack(masks) if environment.has_action_mask else None


def _mask(environment: HostEnvironment, vector: HostVector, count: int) -> np.ndarray:
    """Legal actions, [E, A] bool; all if the environment has no action mask."""
    expected = (count, environment.num_actions)
    if not environment.has_action_mask:
        return np.ones(expected, bool)
    mask = np.array(vector.action_mask())
    if mask.shape != expected or mask.dtype != bool:
        raise EnvironmentFailure(
            f"returned {describe(mask)}; expected [{count}, {environment.num_actions}] bool"
        )
    return mask


def _draw(generator: np.random.Generator, legal: np.ndarray) -> int:
    """A random legal action; any action if none is legal."""
    actions = np.flatnonzero(legal) if legal.any() else np.arange(len(legal))
    return int(actions[generator.integers(len(actions))])


def _step(vector: HostVector, actions: np.ndarray) -> Any:
    """Copies the result of a step, which the next call may overwrite."""
    step = vector.step(actions)
    if not isinstance(step, HostStep):
        return step
    observation = jax.tree.map(np.array, step.observation)
    flags = [np.array(x) for x in (step.terminated, step.truncated, step.first)]
    return HostStep(observation, np.array(step.reward), flags[0], flags[1], flags[2])


def _rows(played: _Played, index: slice = slice(None)) -> PyTree:
    """What some of the environments returned, step by step."""
    first, steps, masks = played
    names = ("observation", "reward", "terminated", "truncated", "first")
    rows = [{name: at(getattr(step, name), index) for name in names} for step in steps]
    return at(first, index), rows, at(masks, slice(None), index)


def _types(
    environment: HostEnvironment, first: PyTree, played: list[HostStep], count: int
) -> Finding:
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), environment.observation
    )
    problems = mismatch("reset's observation", first, batch)
    for step in played:
        problems += mismatch("step's observation", step.observation, batch)
        for name in ("terminated", "truncated", "first"):
            flags = getattr(step, name)
            if flags.shape != (count,) or flags.dtype != bool:
                problems.append(f"step's {name} is {describe(flags)}; expected [{count}] bool")
        if step.reward.shape != (count,) or step.reward.dtype.kind != "f":
            problems.append(f"step's reward is {describe(step.reward)}; expected [{count}] float")
    problems = list(dict.fromkeys(problems))  # each once
    return judge("types", problems, "reset and step return what is declared")


def _ends(played: list[HostStep]) -> Finding:
    """Truncations show the last observation, and a first observation follows every end."""
    terminated, truncated, first, reward = (
        np.stack([getattr(step, name) for step in played])
        for name in ("terminated", "truncated", "first", "reward")
    )
    awaiting = ((terminated | truncated) & ~first)[:-1]
    broken = {
        "an episode is both terminated and truncated": terminated & truncated,
        "a truncated episode does not show its last observation": truncated & first,
        "an episode begins before the previous one has ended": (
            first[1:] & ~terminated[1:] & ~awaiting
        ),
        "no episode begins after an end": awaiting & ~first[1:],
        "the step that begins an episode has a reward or an end": (
            awaiting & ((reward[1:] != 0) | terminated[1:] | truncated[1:])
        ),
    }
    problems = [f"{what} (step {np.argwhere(x)[0][0]})" for what, x in broken.items() if x.any()]
    detail = f"{terminated.sum()} episodes terminated and {truncated.sum()} were truncated"
    detail += f" within {len(played)} steps of random play"
    if not problems and not (terminated | truncated).any():
        return not_checked("ends", detail)
    return judge("ends", problems, detail)
