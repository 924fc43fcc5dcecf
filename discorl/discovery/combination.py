"""Combines the meta-gradients of many agents into one step of the rule."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from discorl.agent.config import OptimiserConfig
from discorl.agent.optimiser import make_optimiser
from discorl.discovery.blocks import OrderedSum
from discorl.discovery.config import DiscoverConfig
from discorl.types import Array, Metrics, Params, PyTree


class Combination:
    """One Adam per agent, on the agent's device, then the mean of their updates."""

    def __init__(self, config: DiscoverConfig, ordered_sum: OrderedSum) -> None:
        self._config = config
        self._adam = make_optimiser(
            OptimiserConfig(learning_rate=config.meta_learning_rate, schedule=config.meta_schedule),
            steps=config.meta_steps,
        )
        self._sum = ordered_sum
        self._contribute = jax.jit(self.contribute, donate_argnums=1)
        self._move = jax.jit(self.move, donate_argnums=1)

    def init(self, eta: Params, counts: Sequence[int]) -> PyTree:
        """States of the Adams, given the agents of each block, 0 for blocks of other processes.

        The result is a tuple with one tree per block, leaves [agents, ...], and None for blocks of
        other processes. If the population has a single Adam, it is the state of that.
        """
        adam = self._adam.init(eta)
        if not self._config.per_agent_adam:
            return adam
        return tuple(
            jax.tree.map(lambda x, n=n: jnp.stack([x] * n), adam) if n else None for n in counts
        )

    def __call__(
        self, eta: Params, optimizers: PyTree, gradients: Mapping[int, Params]
    ) -> tuple[Params, PyTree, Metrics, dict[int, Array]]:
        """Moves the rule by meta-gradients of each block of this process, leaves [agents, ...].

        The Adams, see `init`, are donated. Returns the new parameters, the Adams, metrics of the
        whole, and norms of the meta-gradients of each block, [agents].
        """
        per_agent = self._config.per_agent_adam
        adams = dict(enumerate(optimizers)) if per_agent else dict.fromkeys(gradients)
        rows, norms = {}, {}
        for i, of_block in gradients.items():
            eta_there = jax.device_put(eta, jax.tree.leaves(of_block)[0].sharding)
            rows[i], adams[i], norms[i] = self._contribute(eta_there, adams[i], of_block)
        like = jax.eval_shape(_row, eta, eta, jnp.zeros(2))
        # On the default device, like everything else that does not belong to one block.
        total = jax.device_put(self._sum(rows, like), jax.local_devices()[0])
        eta, adam, whole = self._move(eta, None if per_agent else optimizers, total)
        return eta, tuple(adams.values()) if per_agent else adam, whole, norms

    def contribute(
        self, eta: Params, optimizers: PyTree, gradients: Params
    ) -> tuple[Array, PyTree, Array]:
        """The contributions of a block's agents; meta-gradients have leaves [agents, ...].

        A meta-gradient that is not finite, or too large, is dropped: it changes neither the rule
        nor its agent's Adam. Returns rows to be summed over all agents, see `_row`, [agents, R];
        the agents' Adams, None if the population has a single one; and the norm of each
        meta-gradient.
        """
        norms = jax.vmap(optax.tree.norm)(gradients)
        kept = self.is_kept(norms)

        def choose(x: Array, y: Array | int) -> Array:
            return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, y)

        gradients = jax.tree.map(lambda x: choose(x, 0), gradients)
        updates = gradients
        if optimizers is not None:
            updates, moved = jax.vmap(lambda g, o: self._adam.update(g, o, eta))(
                gradients, optimizers
            )
            updates = jax.tree.map(lambda x: choose(x, 0), updates)
            optimizers = jax.tree.map(choose, moved, optimizers)
        directed = kept & (norms > 0)
        lengths = jnp.where(directed, norms, jnp.inf)
        directions = jax.vmap(lambda g, n: jax.tree.map(lambda x: x / n, g))(gradients, lengths)
        counted = jnp.stack([kept, directed], axis=1).astype(norms.dtype)
        return jax.vmap(_row)(updates, directions, counted), optimizers, norms

    def move(
        self, eta: Params, optimizer: PyTree, total: Array
    ) -> tuple[Params, PyTree, dict[str, Array]]:
        """Moves the rule by the sum of the agents' rows, [R]; see `contribute`.

        The optimizer is the population's Adam; None if each agent has one. Returns the new
        parameters, the Adam, and metrics of the whole.
        """
        _, unravel = ravel_pytree((eta, eta, jnp.zeros(2)))
        update, directions, (kept, count) = unravel(total)
        update = jax.tree.map(lambda x: x / jnp.maximum(1, kept), update)
        if optimizer is not None:
            update, optimizer = self._adam.update(update, optimizer, eta)
        # The mean cosine between the meta-gradients of two agents; NaN for fewer than two.
        cosines = optax.tree.norm(directions) ** 2 - count
        whole = {
            "meta/gradient_cosine": cosines / (count * (count - 1)),
            "meta/eta_norm": optax.tree.norm(eta),
            "meta/eta_update_norm": optax.tree.norm(update),
            "meta/kept": kept,
        }
        return optax.apply_updates(eta, update), optimizer, whole

    def is_kept(self, norms: Array | np.ndarray) -> Array:
        """Which meta-gradients are kept, by their norms."""
        return jnp.isfinite(norms) & (norms <= self._config.max_meta_gradient)


def _row(update: Params, direction: Params, counted: Array) -> Array:
    """One agent's summand: its update, its meta-gradient's direction, and counts.

    The update is zero if the meta-gradient is dropped. The direction has norm 1, or 0 if there is
    none. The counts, [2], say whether it is kept and whether it has a direction.
    """
    return ravel_pytree((update, direction, counted))[0]
