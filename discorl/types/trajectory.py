"""The data that flows through discorl, with every shape documented once.

`T` is the number of transitions of a trajectory, `B` the number of trajectories in a batch and `A`
the number of actions. Time comes first. Observations exist at the `T + 1` moments around the
transitions, everything else once per transition.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Array = jax.Array
PyTree = Any
Params = Any  # nested containers of arrays
Key = jax.Array
Outputs = dict[str, Array]  # outputs of a network, by name
Metrics = dict[str, Array]  # scalars to log, by name


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A batch of experience in the layout that every rule learns from.

    An episode may end inside a trajectory. After a termination the next observation is simply the
    first of the next episode. After a truncation (a time limit) the next observation must be the
    true last one of the cut episode, because the return bootstraps from its value. The step taken
    there is a *filler*: it is never learned from, and the next episode begins one step later.
    Environments on the host may need a filler after a termination, too. The terminated step is then
    also marked as truncated.

    `filler` and `mask` are independent. Fillers record how experience was collected: they separate
    episodes, and recurrent state is reset after them. The mask is for the code that builds the
    batch, for example to exclude a burn-in from the loss; it resets nothing.
    """

    observation: PyTree  # [T+1, B, ...], any pytree of arrays
    action: Array  # [T, B] int, taken at observation[t]
    reward: Array  # [T, B], follows action[t]
    terminated: Array  # [T, B] bool, the episode ended because of action[t]
    behaviour_logits: Array  # [T, B, A], policy that chose action[t]
    truncated: Array | None = None  # [T, B] bool, cut by a time limit after step t; None: never
    # [T, B] bool, step t stands in for a reset; None: exactly the steps after truncated ones
    filler: Array | None = None
    mask: Array | None = None  # [T, B], 0 excludes step t from the loss; None: all ones
    recurrent_state: PyTree = ()  # [1, B, ...], of the network, before observation[0]
    action_mask: Array | None = None  # [T+1, B, A] bool, legal at observation[t]; None: all legal

    def fillers(self) -> Array:
        """Steps that stand in for a reset: [T, B] bool."""
        if self.filler is not None:
            return self.filler.astype(bool)
        if self.truncated is None:
            return jnp.zeros(self.action.shape, bool)
        first = jnp.zeros_like(self.truncated[:1], bool)
        return jnp.concatenate([first, self.truncated[:-1].astype(bool)])

    def cut(self) -> Array:
        """Steps whose successor belongs to another episode or to a filler: [T, B] bool."""
        terminated = self.terminated.astype(bool)
        return terminated if self.truncated is None else terminated | self.truncated.astype(bool)

    def begins(self) -> Array:
        """Time steps after the first at which an episode begins: [T+1, B] bool.

        Recurrent state is reset there. The last observation of a truncated episode does not count:
        it belongs to the previous episode, which bootstraps from its value.
        """
        begins = self.fillers()
        ended = self.terminated.astype(bool)
        begins |= ended if self.truncated is None else ended & ~self.truncated.astype(bool)
        return jnp.concatenate([jnp.zeros_like(begins[:1]), begins])

    def legal(self, moments: slice = slice(None)) -> Array | None:
        """Legal actions at all or some of the T+1 moments, [T+1, B, A] bool; None: no masks.

        An environment may mask every action at the last observation of an episode. All actions
        count as legal there.
        """
        if self.action_mask is None:
            return None
        legal = self.action_mask[moments].astype(bool)
        return legal | ~legal.any(axis=-1, keepdims=True)

    def learnable(self, dtype: DTypeLike) -> Array:
        """Weight of each step in the loss: [T, B]."""
        learnable = (~self.fillers()).astype(dtype)
        return learnable if self.mask is None else learnable * self.mask.astype(dtype)


@dataclasses.dataclass(frozen=True)
class OutputSpec:
    """The outputs that a rule asks a network for, and their shapes for one observation.

    `action` outputs come once per action: the network yields [A, *shape] for them.
    """

    num_actions: int
    state: dict[str, tuple[int, ...]]  # includes what `Rule.policy` reads
    action: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
