"""The contract of a family: tasks of one shape that differ only in numbers.

A family fixes what must be known at compile time: shapes, the number of actions, the longest
episode. Its members differ in a pytree of arrays, their *parameters*. One compiled program thus
runs any member, and `jax.vmap` runs a different member for every agent:

    family = Grid(size=5)
    parameters = jax.vmap(lambda key: family.sample(key, "train"))(keys)  # one member per key

    def live(parameters, key):
        environment = family.environment(parameters)
        return acting.init(environment, key, num_environments=16)

    actors = jax.vmap(live)(parameters, keys)
"""

import abc
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Environment, Reference, Step
from discorl.envs.families import draws
from discorl.types import Array, Key, PyTree, validation

Split = Literal["train", "held_out"]


class Timed(Protocol):
    """The common interface of families' states, which are named tuples."""

    @property
    def time(self) -> Array:
        """Steps taken, [] int32."""

    def __iter__(self) -> Iterator[Array]: ...


Parameters = TypeVar("Parameters")
State = TypeVar("State", bound=Timed)


class Sizes(NamedTuple):
    """The sizes that all members of a family share."""

    num_actions: int  # A
    observation: tuple[int, ...]  # shape of an observation, float32
    horizon: int  # the maximum number of steps of an episode
    situations: tuple[int, ...]  # shape of the table; see `Family`


class Plan(NamedTuple):
    """A member solved by backward induction; `situations` are the axes of its table."""

    action_values: Array  # [horizon, *situations, A], of optimal play from each step on
    reference: Reference


class Family(abc.ABC, Generic[Parameters, State]):
    """A distribution of tasks. Subclasses are frozen dataclasses whose fields define it.

    Fields of type `int` and `bool` are static: a program is compiled for them. Fields of type
    `Range` and `float` are ranges and probabilities of drawn parameters. They only change which
    members there are, and how long their episodes can be. A range may be given as a pair or a
    number. Bounds of fields (`validation.bounded`) are checked.

    All methods are pure, work on one task without a batch, and can be traced, vmapped and jitted
    in their arrays. A family defines `begin`, `transition` and `observe`; a family with noisy
    observations defines `reset` and `step` instead.

    For exact reference returns, a family also defines its dynamics as a table. A *situation* is
    everything that matters about a state except for the number of steps taken. `starts`,
    `lookahead` and `situation` define the table, and `solve` does the rest.
    """

    truncates: ClassVar[bool] = True  # at the horizon; False: all episodes end by themselves

    def __post_init__(self) -> None:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()  # DeepSea: deep_sea
        validation.Fields(self, name).declared()

    @property
    @abc.abstractmethod
    def sizes(self) -> Sizes:
        """The static sizes that a program is compiled for."""

    @property
    def num_actions(self) -> int:
        return self.sizes.num_actions

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.sizes.observation, jnp.float32)

    @property
    def horizon(self) -> int:
        return self.sizes.horizon

    def sample(self, key: Key, split: Split) -> Parameters:
        """Draws a member. No member of one split is a member of the other."""
        validation.choice("split", split, get_args(Split))
        return self._draw_apart(key, jnp.int32(get_args(Split).index(split)))

    @functools.partial(jax.jit, static_argnums=0)
    def _draw_apart(self, key: Key, parity: Array) -> Parameters:
        # From the same key, the members of the two splits would be almost equal.
        return self.draw(jax.random.fold_in(key, parity), parity)

    @abc.abstractmethod
    def draw(self, key: Key, parity: Array) -> Parameters:
        """Draws a member whose mark is even (parity 0, train) or odd (parity 1, held out)."""

    def begin(self, parameters: Parameters, key: Key) -> State:
        """The state in which an episode of a member begins."""
        raise NotImplementedError(f"{type(self).__name__} does not define begin")

    def transition(
        self, parameters: Parameters, state: State, action: Array, key: Key
    ) -> tuple[State, Array, Array]:
        """The state after an action, the reward, [] float32, and whether the task is over."""
        raise NotImplementedError(f"{type(self).__name__} does not define transition")

    def observe(self, parameters: Parameters, state: State) -> Array:
        """The observation of a state."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe")

    def reset(self, parameters: Parameters, key: Key) -> tuple[State, Array]:
        """Begins an episode of a member; returns its state and first observation."""
        state = self.begin(parameters, key)
        return state, self.observe(parameters, state)

    def step(
        self, parameters: Parameters, state: State, action: Array, key: Key
    ) -> tuple[State, Step]:
        """Takes one action in a member."""
        state, reward, terminated = self.transition(parameters, state, action, key)
        truncated = jnp.logical_and(self.truncates, state.time >= self.horizon)
        return state, Step(self.observe(parameters, state), reward, terminated, truncated)

    def starts(self, parameters: Parameters) -> Array:
        """Probability of each situation at the start of an episode, [*situations].

        By default, all episodes of a member begin in the same one.
        """
        state = self.begin(parameters, jax.random.key(0))
        return jnp.zeros(self.sizes.situations).at[self.situation(state)].set(1.0)

    @abc.abstractmethod
    def lookahead(self, parameters: Parameters, time: Array, values: Array) -> Array:
        """Expected reward plus value of the next situation: [*situations, A].

        `time` steps have been taken before this one. `values`, [*situations], are those of the next
        situations if the episode continues.
        """

    def situation(self, state: State) -> tuple[Array, ...]:
        """The place of a state in the table, an index for each axis.

        By default, the state's numbers without the time, which comes last.
        """
        return tuple(state)[:-1]

    def observations(self, parameters: Parameters) -> Array | None:
        """The observation of each situation, [*situations, *observation].

        [horizon, *situations, *observation] if observations also depend on the number of steps
        taken. None if they depend on anything else, such as noise, or hide part of a situation.
        """
        return None

    def evaluate(self, parameters: Parameters, policy: Array) -> Array:
        """Exact expected return per episode, [], of a policy.

        The policy gives the probabilities of actions, [*situations, A] or
        [horizon, *situations, A].
        """
        starts = self.starts(parameters)
        policies = jnp.broadcast_to(policy, (self.horizon, *starts.shape, self.num_actions))

        def back(values: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
            time, chosen = at
            return jnp.sum(chosen * self.lookahead(parameters, time, values), axis=-1), None

        zeros = jnp.zeros(starts.shape, policy.dtype)
        steps = jnp.arange(self.horizon), policies
        return jnp.sum(starts * jax.lax.scan(back, zeros, steps, reverse=True)[0])

    def render(self, parameters: Parameters, state: State) -> np.ndarray | None:
        """A picture of the state, [height, width, 3] uint8; None if it cannot be drawn."""
        return None

    def environment(self, parameters: Parameters) -> "Member[Parameters, State]":
        """The member as an environment; its parameters may be traced arrays."""
        return Member(self, parameters)

    def member(self, seed: int = 0, split: Split = "train") -> "Member[Parameters, State]":
        """The member that a seed selects."""
        return self.environment(self.sample(jax.random.key(seed), split))

    def solve(self, parameters: Parameters) -> Plan:
        """Backward induction over the table, for random and optimal play.

        Optimal play knows how many steps are left. Under a time limit, a policy that only sees
        observations can therefore fall slightly short of it.
        """

        def back(values: tuple[Array, Array], time: Array) -> tuple[tuple[Array, Array], Array]:
            random, optimal = values
            choices = self.lookahead(parameters, time, optimal)
            random = self.lookahead(parameters, time, random).mean(axis=-1)
            return (random, choices.max(axis=-1)), choices

        starts = self.starts(parameters)
        zeros = jnp.zeros_like(starts)
        times = jnp.arange(self.horizon)
        values, choices = jax.lax.scan(back, (zeros, zeros), times, reverse=True)
        random, optimal = (jnp.sum(starts * each) for each in values)
        return Plan(choices, Reference(random, optimal))

    @functools.partial(jax.jit, static_argnums=0)
    def reference(self, parameters: Parameters) -> Reference:
        """Exact expected returns per episode of random and optimal play."""
        return self.solve(parameters).reference


class PlaceState(NamedTuple):
    """A state that is one number besides the time: a square, a capital, a cue."""

    place: Array  # [] int32
    time: Array  # [] int32, steps taken


class PlaceFamily(Family[Parameters, PlaceState]):
    """Tasks whose situations are places, by default observed as one-hot vectors."""

    def start(self, parameters: Parameters) -> Array | int | None:
        """The place where every episode begins, by default the first; None: any, at random."""
        return 0

    def begin(self, parameters: Parameters, key: Key) -> PlaceState:
        start, (count,) = self.start(parameters), self.sizes.situations
        start = draws.index(key, count) if start is None else start
        return PlaceState(jnp.int32(start), jnp.int32(0))

    def observe(self, parameters: Parameters, state: PlaceState) -> Array:
        return jax.nn.one_hot(state.place, *self.sizes.situations)

    def starts(self, parameters: Parameters) -> Array:
        start, (count,) = self.start(parameters), self.sizes.situations
        return jnp.full(count, 1 / count) if start is None else jax.nn.one_hot(start, count)

    def observations(self, parameters: Parameters) -> Array | None:
        return self._seen(parameters, jnp.int32(0))

    def _seen(self, parameters: Parameters, time: Array) -> Array:
        """The observations of all places after `time` steps."""
        (count,) = self.sizes.situations
        places = jnp.arange(count)
        return jax.vmap(lambda place: self.observe(parameters, PlaceState(place, time)))(places)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Member(Environment[State], Generic[Parameters, State]):
    """One task of a family. It is a pytree, so members can be stacked and passed to programs.

    Members compare and hash by identity, so a member can also be a static argument of a program.
    """

    family: Family[Parameters, State] = dataclasses.field(metadata={"static": True})
    parameters: Parameters

    @property
    def num_actions(self) -> int:  # type: ignore[override]  # a member never changes it
        return self.family.num_actions

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return self.family.observation

    def reset(self, key: Key) -> tuple[State, PyTree]:
        return self.family.reset(self.parameters, key)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        return self.family.step(self.parameters, state, action, key)

    def render(self, state: State) -> np.ndarray | None:
        return self.family.render(self.parameters, state)

    def reference(self) -> Reference:
        return self.family.reference(self.parameters)
