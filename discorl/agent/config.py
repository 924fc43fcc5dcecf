"""The description of an agent, which training, discovery and comparison share."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from discorl.networks.standard import Torso
from discorl.types import UserError
from discorl.types.validation import Fields, bounded

MOST_FRAMES = 1024  # of a stack
Schedule = Literal["constant", "cosine"]


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """The standard network, or your own."""

    network_factory: str | None = None
    """Function that makes your own network, `package.module:function`, optionally with parameters
    (`my_nets:make,width=64`); by default the standard network with the sizes below."""
    torso: Torso = "auto"
    """Torso of the network; `auto` is `residual` for images of at least 16 pixels a side. `conv`
    has a 3 x 3 convolution for each of `filters`; `nature` begins with those of DQN."""
    hidden: tuple[int, ...] = bounded((512, 512), least=1)
    """Widths of the torso's layers, with ReLU between them and none after the last. Heads are
    linear, so a single layer makes a linear network."""
    filters: tuple[int, ...] = bounded((16, 32, 32), least=1)
    """Filters of each section of a residual torso, or of each convolution."""
    action_lstm: int = bounded(128, least=1)
    """Width of the action model's LSTM."""
    action_hidden: tuple[int, ...] = bounded((128,), least=1)
    """Hidden widths of the action model's heads."""
    lstm: int = bounded(0, least=0)
    """Width of an LSTM between torso and heads, for tasks that need memory; 0: none."""

    other_names: ClassVar[Mapping[str, str]] = {
        "core": "lstm",
        "hidden_sizes": "hidden",
        "hidden_size": "hidden",
        "layers": "hidden",
        "lstm_size": "lstm",
        "net_arch": "hidden",
    }

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        named = isinstance(self.network_factory, str) and ":" in self.network_factory
        accepted = "a function, as package.module:function"
        fields.require(self.network_factory is None or named, "network_factory", accepted)


@dataclasses.dataclass(frozen=True)
class OptimiserConfig:
    """Adam with a clip of each element of its step, weight decay and a schedule."""

    learning_rate: float = bounded(1e-2, above=0)
    """Learning rate, after warm-up."""
    end_learning_rate: float = bounded(0.0, least=0)
    """Learning rate at the end of a cosine schedule."""
    schedule: Schedule = "constant"
    """Learning-rate schedule after warm-up, over all updates of the agent."""
    warmup_steps: int = bounded(0, least=0)
    """Environment steps over which the learning rate rises from zero."""
    weight_decay: float = bounded(0.0, least=0)
    """Decoupled weight decay."""
    max_abs_update: float = bounded(1.0, above=0)
    """Clip of each element of Adam's step, before the learning rate."""
    max_gradient_norm: float = bounded(0.0, least=0)
    """Clip of the gradient's norm, before Adam; 0: none."""
    adam_epsilon: float = bounded(1e-8, above=0)
    """Adam's epsilon."""

    other_names: ClassVar[Mapping[str, str]] = {
        "lr": "learning_rate",
        "eps": "adam_epsilon",
        "adam_eps": "adam_epsilon",
        "anneal_lr": "schedule",
        "lr_schedule": "schedule",
        "max_grad_norm": "max_gradient_norm",
        "wd": "weight_decay",
    }

    def __post_init__(self) -> None:
        Fields(self).declared()


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """Everything that defines an agent, except for its rule and its environment."""

    network: NetworkConfig = NetworkConfig()
    """The network."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """The optimiser."""
    num_envs: int = bounded(2, least=1)
    """Environments that the agent acts in at once; each yields one trajectory per update."""
    unroll: int = bounded(28, least=1)
    """Transitions per trajectory."""
    batch: int = bounded(64, least=1)
    """Trajectories per update."""
    replay: int = bounded(1024, least=1)
    """Capacity of replay, in trajectories."""
    replay_fraction: float = bounded(1.0, least=0, most=1)
    """Share of the batch drawn from replay; 0 learns from fresh trajectories only."""
    discount: float = bounded(0.997, least=0, most=1)
    """Discount of rewards."""
    reward_scale: float | None = None
    """Factor on rewards for learning; reported returns are not scaled. By default that of the
    rule's recipe. Without one it is 1, or in training what the rule derives from the environment
    (`Rule.reward_scale`): Disco rules scale small rewards up where the returns of random and
    optimal play are known."""
    frame_stack: int = bounded(1, least=1, most=MOST_FRAMES)
    """Number of latest frames that the network sees; a trajectory stores each frame once."""
    data_parallel: int = bounded(1, least=1)
    """Parts that environments, replay and batch are split into, which devices share. Results depend
    on this number, because each part has its own replay; devices change only the last digits."""

    other_names: ClassVar[Mapping[str, str]] = {
        "batch_size": "batch",
        "buffer_size": "replay",
        "environments": "num_envs",
        "gamma": "discount",
        "n_envs": "num_envs",
        "n_steps": "unroll",
        "num_environments": "num_envs",
        "num_steps": "unroll",
        "replay_size": "replay",
        "rollout_length": "unroll",
        "unroll_length": "unroll",
    }

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        if self.reward_scale is not None:
            fields.number("reward_scale", above=0)
        fresh = self.batch - self.replayed
        if fresh > self.num_envs:
            raise UserError(
                f"batch {self.batch} with replay_fraction {self.replay_fraction} needs {fresh} "
                f"fresh trajectories per update, but num_envs is {self.num_envs}: raise num_envs "
                "or replay_fraction, or lower batch"
            )
        if not self.replayed and self.batch != self.num_envs:
            raise UserError(
                f"batch is {self.batch}; expected num_envs, {self.num_envs}: without replay, an "
                "update learns from all fresh trajectories and nothing else"
            )
        if self.replayed and self.replay < self.num_envs:
            raise UserError(
                f"replay is {self.replay}; expected at least num_envs, {self.num_envs}: each "
                "environment adds a trajectory per update"
            )

        parts = self.data_parallel
        sizes = {"num_envs": self.num_envs, "batch": self.batch}
        if self.replayed:
            sizes |= {"replay": self.replay, "the replayed part of the batch": self.replayed}
        for name, size in sizes.items():
            if size % parts:
                raise UserError(
                    f"data_parallel is {parts}; expected a divisor of {name}, which is {size}"
                )

    @property
    def replayed(self) -> int:
        """Trajectories of a batch that come from replay."""
        return round(self.batch * self.replay_fraction)

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        return self.num_envs * self.unroll
