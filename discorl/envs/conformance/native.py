"""Checks of environments written in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Environment, Step
from discorl.envs.conformance.findings import at, difference, legal_actions, same, values
from discorl.types import Array, Key, PyTree
from discorl.types.findings import Finding, judge, mismatch, not_checked, raised


def check_native(environment: Environment, steps: int, count: int, seed: int) -> list[Finding]:
    """Plays, repeats the same episodes, and steps a single environment by hand."""
    try:
        return _played(environment, steps, count, seed)
    except _Failed as failed:
        return [Finding("play", False, str(failed))]


class _Failed(Exception):
    """A call to the environment failed."""


def _call(name: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # raised by the environment
        raise _Failed(raised(name, error)) from error


def _played(environment: Environment, steps: int, count: int, seed: int) -> list[Finding]:
    key = jax.random.key(seed)
    play = jax.jit(lambda key: _play_many(environment, key, steps, count))
    played = _call(f"playing {steps} steps with seed {seed}", play, key)
    again = play(key)
    first, step, mask = jax.device_get(played)
    findings = [
        same("determinism", played, again, "the same seed gives the same episodes"),
        values(step.observation, step.reward),
        _by_hand(environment, first, step, key, count),
        _ends(first, step),
    ]
    if mask is None:
        return findings
    over = np.cumsum(step.terminated | step.truncated, axis=1) > 0
    return [*findings, legal_actions(mask, ~np.pad(over, ((0, 0), (1, 0)))[:, :-1])]


def check_types(environment: Environment) -> Finding:
    """Reset and step return what is declared, and a loop can carry the state."""
    try:
        return _types(environment)
    except _Failed as failed:
        return Finding("types", False, str(failed))


def _types(environment: Environment) -> Finding:
    key, scalar = jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)
    begun = _call("reset", jax.eval_shape, environment.reset, key)
    if not isinstance(begun, tuple) or len(begun) != 2:
        expected = "expected a state and an observation"
        return Finding("types", False, f"reset returned {_kind(begun)}; {expected}")
    state, first = begun
    done = _call("step", jax.eval_shape, environment.step, state, scalar, key)
    if not isinstance(done, tuple) or len(done) != 2 or not isinstance(done[1], Step):
        expected = "expected a state and a discorl.envs.Step"
        return Finding("types", False, f"step returned {_kind(done)}; {expected}")
    following, step = done
    mask = _call("action_mask", jax.eval_shape, environment.action_mask, state)
    expected_mask = mask and jax.ShapeDtypeStruct((environment.num_actions,), bool)
    flag, reward = jax.ShapeDtypeStruct((), bool), jax.ShapeDtypeStruct((), jnp.float32)
    problems = [
        *mismatch("reset's observation", first, environment.observation),
        *mismatch("step's observation", step.observation, environment.observation),
        *mismatch("step's state", following, state),
        *mismatch("step's reward", step.reward, reward),
        *mismatch("step's terminated", step.terminated, flag),
        *mismatch("step's truncated", step.truncated, flag),
        *mismatch("action_mask", mask, expected_mask),
    ]
    return judge("types", problems, "reset and step return what is declared")


def _kind(found: Any) -> str:
    """Types, as in `a tuple of array, float`."""
    if isinstance(found, tuple):
        return f"a tuple of {', '.join(map(_type, found)) or 'nothing'}"
    return f"{'an' if _type(found) == 'array' else 'a'} {_type(found)}"


def _type(found: Any) -> str:
    return "array" if isinstance(found, jax.ShapeDtypeStruct) else type(found).__name__


def _keys(key: Key, index: Any, time: Any) -> tuple[Key, Key]:
    """The random keys of an environment's action and of its step."""
    key = jax.random.fold_in(jax.random.fold_in(key, index), time)
    action_key, step_key = jax.random.split(key)
    return action_key, step_key


def _choose(environment: Environment, mask: Array | None, key: Key) -> Array:
    """A random legal action; any action if none is legal."""
    if mask is None:
        return jax.random.randint(key, (), 0, environment.num_actions)
    return jax.random.categorical(key, jnp.where(mask | ~mask.any(), 0.0, -jnp.inf))


def _play_many(
    environment: Environment, key: Key, steps: int, count: int
) -> tuple[PyTree, Step, Array | None]:
    """Random actions from fresh starts: first observations [E, ...] and steps [E, T, ...].

    Also returns the action masks before the steps, [E, T, A], if there are any. Nothing is reset;
    steps after the end of an episode are ignored.
    """

    def play(index: Any) -> tuple[PyTree, Step, Array | None]:
        def advance(state: PyTree, time: Any) -> tuple[PyTree, tuple[Step, Array | None]]:
            action_key, step_key = _keys(key, index, time)
            mask = environment.action_mask(state)
            action = _choose(environment, mask, action_key)
            state, step = environment.step(state, action, step_key)
            return state, (step, mask)

        state, observation = environment.reset(jax.random.fold_in(key, count + index))
        return observation, *jax.lax.scan(advance, state, jnp.arange(steps))[1]

    return jax.vmap(play)(jnp.arange(count))


def _by_hand(environment: Environment, first: PyTree, step: Step, key: Key, count: int) -> Finding:
    """A single environment, stepped until its episode ends, agrees with the batch."""
    index = int(np.argmax((step.terminated | step.truncated).any(axis=1)))  # one that ends, if any
    alone = jax.jit(environment.step)
    choose = jax.jit(lambda state, key: _choose(environment, environment.action_mask(state), key))
    state, observation = jax.jit(environment.reset)(jax.random.fold_in(key, count + index))
    problems = difference("the first observation", observation, at(first, index))
    time = 0
    for time in range(step.reward.shape[1]):
        action_key, step_key = _keys(key, index, time)
        state, result = alone(state, choose(state, action_key), step_key)
        expected = at(step, index, time)
        problems += difference(f"step {time}", result, expected)
        if problems or expected.terminated or expected.truncated:
            break
    detail = f"{time + 1} steps of one environment on its own agree with the batch"
    return judge("by hand", problems, detail)


def _ends(first: PyTree, step: Step) -> Finding:
    """Episodes end with their own last observation: an environment never resets itself."""
    count, steps = step.reward.shape
    over = step.terminated | step.truncated
    if not over.any():
        return not_checked("ends", f"no episode ended within {steps} steps of random play")
    last = np.cumsum(over, axis=1) * over == 1  # the first end in each environment
    terminated = (step.terminated & last).sum()
    detail = f"of {count} episodes {terminated} terminated and {last.sum() - terminated} were "
    problem = (
        "every episode ends with an observation that episodes begin with: an environment must not "
        "reset itself"
    )
    return judge(
        "ends",
        [problem] if _resets_itself(first, step) else [],
        f"{detail}truncated within {steps} steps of random play",
    )


def _resets_itself(first: PyTree, step: Step) -> bool:
    """Whether all episodes end with first observations, which appear nowhere within episodes."""
    starts = {_bytes(first, i) for i in range(step.reward.shape[0])}
    last, middle = [], []
    for index, ends in enumerate(step.terminated | step.truncated):
        if ends.any():
            end = int(np.argmax(ends))
            seen = [_bytes(step.observation, index, time) in starts for time in range(end + 1)]
            last.append(seen[-1])
            middle += seen[:-1]
    return all(last) and bool(middle) and not any(middle)


def _bytes(tree: PyTree, *index: int) -> bytes:
    return b"".join(np.asarray(leaf[index]).tobytes() for leaf in jax.tree.leaves(tree))
