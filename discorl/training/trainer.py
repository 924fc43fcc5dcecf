"""The interface of trainers, the same for environments in JAX and on the host."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Self

import jax
import numpy as np

from discorl.agent.learner import Learner
from discorl.envs import Environment, HostEnvironment
from discorl.training.config import TrainConfig
from discorl.training.state import TrainState
from discorl.types import Key, Params


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Episodes that agents played."""

    returns: np.ndarray  # [seeds, episodes]
    lengths: np.ndarray  # [seeds, episodes]
    ended: np.ndarray  # [seeds, episodes] bool, False: stopped at the limit on steps
    # Means of the environment's metrics over finished episodes, and values derived from them; see
    # `HostEnvironment.episode_metrics`.
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Trainer(abc.ABC):
    """Trains and plays the agents of a run.

    `discorl.make_trainer` makes one. With several seeds, every leaf of a state or of parameters has
    a leading axis, [seeds, ...].

    Example:
        ```python
        with discorl.make_trainer(discorl.configure(env="catch")) as trainer:
            state = trainer.init()
            state, metrics, count = trainer.run(state, 100)
            episodes = trainer.play(state.learner.params, jax.random.key(0), episodes=10)
        ```
    """

    environment: Environment | HostEnvironment
    max_steps: int  # default limit of `play`

    def __init__(self, config: TrainConfig, learner: Learner, eta: Params) -> None:
        self.config, self.learner, self.eta = config, learner, eta

    @abc.abstractmethod
    def init(self) -> TrainState:
        """Fresh agents."""

    @abc.abstractmethod
    def start(self, state: TrainState) -> None:
        """Compiles, and starts environments on the host; otherwise the first `run` does it.

        Args:
            state: the state to continue from.
        """

    @abc.abstractmethod
    def run(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        """Makes `count` updates, or fewer if an environment fails meanwhile.

        Args:
            state: its buffers are donated.
            count: at most `LONGEST_CALL`.

        Returns:
            the new state; metrics of each update, [at least made], with several seeds [seeds, at
            least made]; the number of updates made.

        Raises:
            EnvironmentFailure: no update could be made; the state is still valid.
        """

    def play(
        self,
        params: Params,
        key: Key,
        *,
        episodes: int,
        greedy: bool = False,
        max_steps: int | None = None,
    ) -> Episodes:
        """Plays whole episodes.

        Args:
            params: of the network.
            key: random key, independent of training.
            episodes: how many each agent plays.
            greedy: take the most likely action instead of a sample.
            max_steps: limit at which an episode is stopped; by default the trainer's `max_steps`.
        """
        return self._play(params, key, episodes, greedy, max_steps or self.max_steps)

    def film(
        self, params: Params, key: Key, *, greedy: bool = False, max_frames: int
    ) -> list[np.ndarray]:
        """Renders an episode of the first agent: frames [H, W, 3]; [] if it cannot be rendered."""
        return self._film(self.params_by_seed(params)[0], key, greedy, max_frames)

    @abc.abstractmethod
    def _play(
        self, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
    ) -> Episodes: ...

    @abc.abstractmethod
    def _film(
        self, params: Params, key: Key, greedy: bool, max_frames: int
    ) -> list[np.ndarray]: ...

    def flops_per_update(self) -> float | None:
        """Floating-point operations of an update of one agent, acting included; None: unknown."""
        return None

    def close(self) -> None:
        """Stops environments on the host; `start` or `run` start new ones."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def params_by_seed(self, params: Params) -> list[Params]:
        """The parameters of each agent."""
        if self.config.seeds == 1:
            return [params]
        return [jax.tree.map(lambda x, i=i: x[i], params) for i in range(self.config.seeds)]
