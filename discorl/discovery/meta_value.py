"""The meta-value function, which provides the advantages of the meta-gradient.

It is a separate network that learns the value of the agent's policy with V-trace from the agent's
batches.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from discorl.agent.config import OptimiserConfig
from discorl.agent.optimiser import make_optimiser
from discorl.networks import Network, standard
from discorl.networks.prepared import make_prepared
from discorl.networks.standard import Torso
from discorl.rules import returns
from discorl.rules.returns import Moments
from discorl.types import Array, Key, OutputSpec, Params, PyTree, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MetaValueState:
    """The state of a meta-value function."""

    params: Params
    optimizer: PyTree
    adv_moments: Moments
    td_moments: Moments


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimates:
    """The meta-value function's estimates on a batch of trajectories."""

    value: Array  # [T+1, B]
    rho: Array  # [T, B], importance ratios
    adv: Array  # [T, B], V-trace advantages
    td: Array  # [T, B], V-trace targets minus values


@dataclasses.dataclass(frozen=True)
class MetaValue:
    """Binds the settings of a meta-value function into pure functions."""

    observation: PyTree  # shapes and dtypes of one observation
    hidden: tuple[int, ...] = (256, 256)
    discount: float = 0.997
    lambda_: float = 0.95
    learning_rate: float = 3e-4
    torso: Torso = "auto"
    filters: tuple[int, ...] = (16, 32, 32)
    prepare: Callable[[PyTree], PyTree] | None = None  # applied to observations, [N, ...]

    @functools.cached_property
    def _network(self) -> Network:
        spec = OutputSpec(num_actions=0, state={"value": ()})
        build = functools.partial(
            standard, spec, torso=self.torso, hidden=self.hidden, filters=self.filters
        )
        return make_prepared(build, self.observation, self.prepare)

    @functools.cached_property
    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimiser(OptimiserConfig(learning_rate=self.learning_rate))

    def init(self, key: Key) -> MetaValueState:
        """A fresh meta-value function."""
        batch = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), self.observation)
        return self.init_from(self._network.init(key, batch))

    def init_from(self, params: Params) -> MetaValueState:
        """A meta-value function with these parameters and a fresh optimiser."""
        dtype = jax.tree.leaves(params)[0].dtype
        moments = returns.init_moments(dtype)
        return MetaValueState(params, self._optimizer.init(params), moments, moments)

    def _outputs(self, params: Params, trajectory: Trajectory) -> Array:
        """Squashed values, [T+1, B]."""
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.observation)
        return self._network.apply(params, rows)["value"].reshape(-1, trajectory.action.shape[1])

    def _estimate(self, output: Array, trajectory: Trajectory, logits: Array) -> Estimates:
        value = returns.unsquash(output)
        rho = returns.importance_ratio(logits, trajectory.behaviour_logits, trajectory.action)
        vs, adv = returns.vtrace(
            trajectory.reward.astype(value.dtype),
            self.discount * (1 - trajectory.terminated.astype(value.dtype)),
            value[:-1],
            value[1:],
            rho,
            trajectory.cut(),
            self.lambda_,
        )
        return Estimates(value, rho, adv, vs - value[:-1])

    def estimate(
        self, state: MetaValueState, trajectory: Trajectory, logits: Array
    ) -> tuple[Estimates, Array, MetaValueState]:
        """Estimates on a batch, and advantages normalised by moments that include the batch.

        The logits are those of the policy under evaluation, [T, B, A]. Returns estimates,
        normalised advantages, [T, B], and the state with updated moments.
        """
        estimates = self._estimate(self._outputs(state.params, trajectory), trajectory, logits)
        state = self.take_in(state, trajectory, estimates)
        normalised = returns.normalise(state.adv_moments, estimates.adv, centre=True)
        return estimates, normalised, state

    def take_in(
        self, state: MetaValueState, trajectory: Trajectory, estimates: Estimates
    ) -> MetaValueState:
        """Updates the state's moments with the advantages of a batch."""
        weight = (~trajectory.fillers()).astype(estimates.adv.dtype)
        moments = returns.update_moments(state.adv_moments, estimates.adv, weight)
        return dataclasses.replace(state, adv_moments=moments)

    def update(
        self, state: MetaValueState, trajectory: Trajectory, logits: Array
    ) -> MetaValueState:
        """Learns from a batch; see `estimate` for the arguments."""
        weight = (~trajectory.fillers()).astype(logits.dtype)

        def loss(params: Params) -> tuple[Array, tuple[Moments, Moments]]:
            output = self._outputs(params, trajectory)
            estimates = self._estimate(jax.lax.stop_gradient(output), trajectory, logits)
            adv_moments = returns.update_moments(state.adv_moments, estimates.adv, weight)
            td_moments = returns.update_moments(state.td_moments, estimates.td, weight)
            error = returns.normalise(td_moments, estimates.td, centre=False)
            target = jax.lax.stop_gradient(output[:-1] + error)
            mean = returns.weighted_mean(0.5 * jnp.square(output[:-1] - target), weight)
            return mean, (adv_moments, td_moments)

        gradients, moments = jax.grad(loss, has_aux=True)(state.params)
        updates, optimizer = self._optimizer.update(gradients, state.optimizer, state.params)
        return MetaValueState(optax.apply_updates(state.params, updates), optimizer, *moments)
