"""Action masks in a rule: policies, means and maxima skip illegal actions.

A mask, [..., A] bool, is True where an action is legal. None means that all actions are legal, and
leaves the computation unchanged.
"""

import math

import jax.numpy as jnp

from discorl.types import Array

# The logit of an illegal action. Its probability underflows to exactly zero. Minus infinity would
# make 0 * log 0 a NaN in entropies, KLs and their gradients.
ILLEGAL = -1e9


def mask_logits(logits: Array, legal: Array | None) -> Array:
    """Gives illegal actions no probability and no gradient: [..., A]."""
    return logits if legal is None else jnp.where(legal, logits, ILLEGAL)


def mean_over_actions(x: Array, legal: Array | None, axis: int | tuple[int, ...]) -> Array:
    """Mean over legal actions, along one or several axes; the mask broadcasts against `x`."""
    if legal is None:
        return jnp.mean(x, axis=axis)
    return jnp.mean(x, axis=axis, where=jnp.broadcast_to(legal, x.shape))


def max_over_actions(x: Array, legal: Array | None, axis: int) -> Array:
    """Likewise the maximum."""
    return jnp.max(x if legal is None else jnp.where(legal, x, ILLEGAL), axis=axis)


def uniform_entropy(legal: Array | None, num_actions: int, axis: int) -> Array | float:
    """Entropy of the uniform policy over the legal actions, counted as two at least."""
    if legal is None:
        return math.log(max(2, num_actions))
    return jnp.log(jnp.maximum(2, jnp.sum(legal, axis=axis)))
