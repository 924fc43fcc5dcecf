"""Translates Gymnasium's spaces to observations and actions of discorl."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from discorl.envs.actions import combinations
from discorl.envs.host.base import EnvironmentFailure, Reader, as_dtype
from discorl.types import PyTree, UserError

ACTION_MASK = "action_mask"  # key of a mask in observations and in `info`


def observation_of(space: spaces.Space, name: str) -> tuple[PyTree, Reader]:
    """Specs of a space's elements for a network, and a function that reads elements.

    A `Box` is unchanged, except that float64 and int64 become float32. `Discrete`, `MultiDiscrete`
    and `MultiBinary` become one-hot or binary float32. `Dict` and `Tuple` become dicts and tuples
    of their parts; text in a `Dict` is dropped. The function reads one element or a batch of them.
    """
    return _by_part(space, lambda part: _leaf(part, name))


def arrangement_of(space: spaces.Space) -> Callable[[Any], PyTree]:
    """A function that turns one observation into arrays, in the structure of its space.

    Environments may return lists instead of arrays, and dicts with undeclared keys.
    """
    return _by_part(space, lambda _: (None, np.asarray))[1]


def _by_part(
    space: spaces.Space, of_leaf: Callable[[spaces.Space], tuple[PyTree, Reader]]
) -> tuple[PyTree, Reader]:
    """Specs and reader of a space from those of its innermost parts."""
    if isinstance(space, spaces.Dict):
        shown = {key: part for key, part in space.spaces.items() if not _is_text(part)}
        parts = {key: _by_part(part, of_leaf) for key, part in shown.items()}
        readers = {key: read for key, (_, read) in parts.items()}
        return (
            {key: like for key, (like, _) in parts.items()},
            lambda x: {key: read(x[key]) for key, read in readers.items()},
        )
    if isinstance(space, spaces.Tuple):
        several = [_by_part(part, of_leaf) for part in space.spaces]
        return (
            tuple(like for like, _ in several),
            lambda x: tuple(read(part) for (_, read), part in zip(several, x, strict=True)),
        )
    return of_leaf(space)


def _is_text(space: spaces.Space) -> bool:
    """Whether elements are strings, like MiniGrid's missions."""
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def without_mask(space: spaces.Space, num_actions: int) -> spaces.Space:
    """The space without its action mask, if it is a `Dict` with one."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    if np.prod(space[ACTION_MASK].shape or ()) != num_actions:
        return space
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})


def mask_in(
    found: Any, info: Mapping[str, Any], num_actions: int, over: bool = False
) -> np.ndarray:
    """The action mask in one observation or in `info`, [A] bool.

    It may be missing when the episode is over; no action is legal then.

    Raises:
        EnvironmentFailure: neither holds a mask of `num_actions` actions.
    """
    mask = found.get(ACTION_MASK) if isinstance(found, Mapping) else None
    mask = info.get(ACTION_MASK) if mask is None else mask
    if mask is None and over:
        return np.zeros(num_actions, bool)
    if mask is None or np.size(mask) != num_actions:
        shape = "no action mask" if mask is None else f"an action mask of shape {np.shape(mask)}"
        raise EnvironmentFailure(f"returned {shape}; expected one of {num_actions} actions")
    return np.asarray(mask, bool).ravel()


def _leaf(space: spaces.Space, name: str) -> tuple[jax.ShapeDtypeStruct, Reader]:
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        kept = np.dtype(np.float32) if dtype.itemsize == 8 else dtype
        return jax.ShapeDtypeStruct(space.shape, kept), lambda x: as_dtype(x, kept)
    if isinstance(space, spaces.Discrete):
        one_hot = np.eye(int(space.n), dtype=np.float32)
        like = jax.ShapeDtypeStruct((int(space.n),), np.float32)
        return like, lambda x: one_hot[_digits(x, space, space.n)]
    if isinstance(space, spaces.MultiBinary):
        return jax.ShapeDtypeStruct(space.shape, np.float32), lambda x: as_dtype(x, np.float32)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        tables = [np.eye(int(n), dtype=np.float32) for n in space.nvec]
        like = jax.ShapeDtypeStruct((int(space.nvec.sum()),), np.float32)

        def read(x: Any) -> np.ndarray:
            digits = _digits(x, space, space.nvec)
            parts = [table[digits[..., i]] for i, table in enumerate(tables)]
            return np.concatenate(parts, axis=-1)

        return like, read
    raise UserError(
        f"{name}: observations of {space} cannot be read; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, or a Dict or Tuple of those"
    )


def _digits(
    found: Any, space: spaces.Discrete | spaces.MultiDiscrete, count: int | np.ndarray
) -> np.ndarray:
    """Elements of a space as indices from 0; negative indices would count from the end."""
    digits = np.asarray(found) - space.start
    outside = (digits < 0) | (digits >= count)
    if outside.any():
        value = np.asarray(found)[outside][0]
        raise EnvironmentFailure(f"returned an observation of {value}; declared is {space}")
    return digits


def actions_of(space: spaces.Space, bins: int | None, name: str) -> np.ndarray:
    """All actions, [A, ...]; the environment gets the row of the chosen action.

    Continuous dimensions are discretised into `bins` values each; None rejects them.
    """
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    if discrete and bins is not None:
        raise UserError(f"{name} has discrete actions, {space}: it takes no bins")
    if isinstance(space, spaces.Discrete):
        return np.arange(space.start, space.start + space.n)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        choices = [range(s, s + n) for s, n in zip(space.start, space.nvec, strict=True)]
        return combinations(choices, space.shape, space.dtype, name)
    if not isinstance(space, spaces.Box):
        raise UserError(f"{name}: actions of {space} are not supported; expected Discrete")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UserError(
            f"{name}: actions of {space} are not bounded; expected finite bounds: set them in a "
            "wrapper of your own"
        )
    if bins is None:
        raise UserError(
            f"{name}: actions of {space} are continuous; give bins, as in `bins=5`, to discretise "
            "each dimension"
        )
    if bins < 2:
        raise UserError(f"{name}: bins is {bins} for actions of {space}; expected at least 2")
    ends = zip(space.low.ravel(), space.high.ravel(), strict=True)
    values = [np.linspace(low, high, bins) for low, high in ends]
    return combinations(values, space.shape, space.dtype, name)
