"""A trained agent as a policy: observations in, actions out."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from discorl.agent import frames
from discorl.agent.frames import Frames
from discorl.agent.learner import Learner
from discorl.networks.recurrence import blank_state, forget
from discorl.training.trainer import Trainer
from discorl.types import Array, Key, Params, PyTree, UserError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyState:
    """The state that a policy carries from step to step."""

    recurrent_state: PyTree  # of the network, [N, ...]; () if it has none
    recent: PyTree  # `Frames` with the last frames, leaves [S, N, ...]; () without frame stacking


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """Chooses the actions of a trained agent.

    It takes a single observation of its environment, or a batch of them. A policy may be called
    inside `jax.jit`, `jax.vmap` and `jax.lax.scan`.

    Example:
        ```python
        policy = discorl.load_agent("runs/ppo")
        state = policy.init()  # at the start of every episode
        action, state = policy(observation, state)  # the most likely action
        action, state = policy(observation, state, key)  # a sample
        action, state = policy(observation, state, action_mask=legal)  # the most likely legal one
        ```
    """

    learner: Learner
    params: Params
    observation: PyTree  # shapes and dtypes of one observation: a pytree of `jax.ShapeDtypeStruct`
    frame_stack: int = 1

    @classmethod
    def of(cls, trainer: Trainer, params: Params, seed: int | None = None) -> "Policy":
        """The policy of one of a trainer's agents, by default the first.

        With several seeds, every leaf of the parameters has a leading axis.
        """
        first, count = trainer.config.seed, trainer.config.seeds
        if seed is None:
            seed = first
        if not first <= seed < first + count:
            raise UserError(f"seed is {seed}; expected one from {first} to {first + count - 1}")
        return cls(
            trainer.learner,
            trainer.params_by_seed(params)[seed - first],
            trainer.environment.observation,
            trainer.config.agent.frame_stack,
        )

    @property
    def num_actions(self) -> int:
        """Number of actions; an action is an integer below it."""
        return self.learner.num_actions

    def init(self, batch: int | None = None) -> PolicyState:
        """The state at the start of an episode.

        Args:
            batch: number of environments; None: observations come without a batch axis.
        """
        count = 1 if batch is None else batch
        recurrent_state = blank_state(self.learner.network.state, count)
        if self.frame_stack == 1:
            return PolicyState(recurrent_state, ())
        frame = jax.tree.map(
            lambda x: jnp.zeros((self.frame_stack, count, *x.shape), x.dtype), self.observation
        )
        # The next frame is the first of its episode, whose age is 0.
        return PolicyState(recurrent_state, Frames(frame, jnp.full(count, -1, jnp.int32)))

    def reset(self, state: PolicyState, ended: Array) -> PolicyState:
        """The state of a batch after some episodes have ended.

        Args:
            state: of the batch.
            ended: [N] bool; the next observation there is the first of an episode.
        """
        ended = jnp.asarray(ended)
        recent = state.recent
        if self.frame_stack > 1:
            recent = Frames(recent.frame, jnp.where(ended, -1, recent.age))
        return PolicyState(forget(state.recurrent_state, ended), recent)

    def __call__(
        self,
        observation: PyTree,
        state: PolicyState | None = None,
        key: Key | None = None,
        *,
        action_mask: ArrayLike | None = None,
    ) -> tuple[Array, PolicyState]:
        """Chooses actions.

        Args:
            observation: one observation, or a batch [N, ...].
            state: from `init` or from the last call; None: the start of an episode.
            key: samples the action; None takes the most likely one.
            action_mask: legal actions, [A] bool, or [N, A] for a batch; None: all are legal.

        Returns:
            the action, [] int32, or the actions, [N] int32; the next state.

        Raises:
            UserError: the observation differs from those of training in structure or shape, or the
                mask does not fit.
        """
        rows, batched = self._as_batch(observation)
        count = jax.tree.leaves(rows)[0].shape[0]
        if state is None:
            state = self.init(count)
        if action_mask is not None:
            action_mask = self._as_mask(action_mask, count if batched else None)
        logits, state = self._step(self.params, rows, state, action_mask)
        chosen = jnp.argmax(logits, axis=-1) if key is None else jax.random.categorical(key, logits)
        action = chosen.astype(jnp.int32)
        return (action if batched else action[0]), state

    @functools.cached_property
    def _step(self) -> Any:
        return jax.jit(self._advance)

    def _advance(
        self, params: Params, observation: PyTree, state: PolicyState, action_mask: Array | None
    ) -> tuple[Array, PolicyState]:
        """Logits, [N, A], and the next state."""
        seen, recent = observation, state.recent
        if self.frame_stack > 1:
            recent = frames.push(recent, observation, self.frame_stack)
            seen = frames.window(recent.frame, recent.age, self.frame_stack)
        logits, recurrent_state = self.learner.policy(
            params, seen, state.recurrent_state, action_mask
        )
        return logits, PolicyState(recurrent_state, recent)

    def _as_mask(self, found: ArrayLike, batch: int | None) -> Array:
        mask = jnp.asarray(found, bool)
        expected = (self.num_actions,) if batch is None else (batch, self.num_actions)
        if mask.shape != expected:
            raise UserError(f"action_mask has the shape {mask.shape}; expected {expected}")
        return mask.reshape(-1, self.num_actions)

    def _as_batch(self, observation: PyTree) -> tuple[PyTree, bool]:
        """The observation with a batch axis, in the declared dtype, and whether it had one."""
        found: Any = jax.tree.structure(observation)
        declared: Any = jax.tree.structure(self.observation)
        if found != declared:
            raise UserError(
                f"observation is a {found}; expected a {declared}, like those of the environment"
            )
        batched = None

        def convert(found: Any, like: jax.ShapeDtypeStruct) -> Array:
            nonlocal batched
            array = jnp.asarray(found, like.dtype)
            has_batch = array.ndim == len(like.shape) + 1
            shape = array.shape[1:] if has_batch else array.shape
            if shape != like.shape or batched not in (None, has_batch):
                raise UserError(
                    f"observation has the shape {array.shape}; expected {like.shape}, or "
                    f"{('N', *like.shape)} for a batch of N"
                )
            batched = has_batch
            return array if has_batch else array[None]

        rows = jax.tree.map(convert, observation, self.observation)
        return rows, bool(batched)
