"""The settings of a discovery run, and of the agents in it."""

import dataclasses
import math
import numbers
from typing import Any, get_args

from discorl.agent.optimiser import Schedule
from discorl.discovery import distributions
from discorl.networks.standard import Torso
from discorl.rules.meta_network import Sizes
from discorl.rules.regularisers import Regularisers
from discorl.training.config import Config
from discorl.types import UserError, specs


@dataclasses.dataclass(frozen=True)
class DiscoverConfig:
    """Settings of a discovery run; a run is a function of them."""

    envs: tuple[str, ...] = ("catch:rows=5,columns=5",)
    """Environments: families of tasks (`grid:size=5`), of which every life draws a member, or
    single environments. Settings of an environment's own agents may follow after a semicolon:
    `grid:size=5;agents=4;hidden=32,32;learning_rate=1e-3`. Ranges make a distribution:
    `grid:size=4..6,respawn=0.0..0.5` spreads agents over sizes and lets every life draw the
    rest."""
    preset: str = "demo"
    """Where the other settings start from."""
    seed: int = 0
    """Seed of the run."""
    agents: int = 2
    """Agents for each environment."""
    meta_steps: int = 800
    """How many steps of the rule to make."""
    start: str = "scratch"
    """Rule to start from, a name or a file; `scratch` is a new one, and `muesli` a new one that has
    learned to imitate Muesli's update."""
    imitation_steps: int = 2000
    """Steps of that imitation."""
    rules_path: str | None = None
    """Folder or file to look for the starting rule in first."""

    window: int = 20
    """Agent updates that a meta-gradient goes through."""
    stride: int = 0
    """Agent updates from the start of one window to that of the next; 0: as many as `window`. With
    fewer, windows overlap, in environments written in JAX; with more, there are updates between
    them that no meta-gradient goes through."""
    lifetimes: tuple[int, ...] = (20_000, 50_000, 100_000, 200_000)
    """Environment steps of a life, each drawn with a probability inverse to its length."""
    meta_learning_rate: float = 1e-3
    """Learning rate of the rule."""
    meta_schedule: Schedule = "constant"
    """How it changes over the meta-steps: constant, or cosine, which ends at 0."""
    average: float = 0.0
    """Decay of the average over the rule's parameters that is evaluated and written; 0: none."""
    per_agent_adam: bool = True
    """Whether each agent's meta-gradient goes through an Adam of its own before the mean."""
    max_meta_gradient: float = 1e4
    """Norm beyond which an agent's meta-gradient is dropped, as one that is not finite is."""
    validation: int = 48
    """Fresh trajectories on which an updated agent is judged."""
    validation_unroll: int = 29
    """Transitions of those."""
    entropy_cost: float = 0.01
    """Reward for the policy's entropy on the validation data."""
    prediction_entropy_cost: float = 0.001
    """Reward for the entropy of y and z."""
    target_mean_cost: float = 0.001
    """Penalty on the squared mean of the targets' logits."""
    target_kl_cost: float = 0.01
    """Penalty on the distance of pi_hat from the target network's policy."""
    target_improvement: float = 0.0
    """How much that policy is improved first: the clip of the advantages by which it is, those of
    all actions and those of the actions taken (1 in Muesli); 0, as in the paper, not at all. It
    lets a new rule begin to learn much earlier."""
    mixed_mode: bool = False
    """Whether the agents' gradient is differentiated forward over backward; the same result with
    other needs of memory and time."""
    value_hidden: tuple[int, ...] = (256, 256)
    """Widths of the meta-value function's network."""
    value_learning_rate: float = 3e-4
    """Learning rate of the meta-value function."""
    value_discount: float = 0.997
    """Discount of the meta-value function."""
    value_lambda: float = 0.95
    """Decay of its traces."""

    environments: int = 10
    """Environments that an agent acts in at once."""
    unroll: int = 29
    """Transitions of a trajectory."""
    batch: int = 96
    """Trajectories in the batch of an agent's update."""
    replay: int = 1024
    """Trajectories that an agent's replay keeps."""
    replay_fraction: float = 0.9
    """Share of the batch drawn from replay."""
    learning_rate: float = 3e-4
    """Learning rate of the agents."""
    adam_epsilon: float = 1e-8
    """Epsilon of the agents' Adam."""
    discount: float = 0.997
    """Discount of rewards."""
    torso: Torso = "auto"
    """Torso of the agents and of the meta-value function; auto takes `residual` for images of 16
    pixels a side or more."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the agents' torso."""
    filters: tuple[int, ...] = (16, 32, 32)
    """Filters of each section of a residual torso."""
    action_lstm: int = 128
    """Width of the agents' action model."""
    action_hidden: tuple[int, ...] = (128,)
    """Hidden widths of the action model's heads."""
    core: int = 0
    """Width of an LSTM between torso and heads, for tasks that need memory; 0: none."""
    frame_stack: int = 1
    """Latest frames that agents and their meta-value functions see at once."""

    prediction_size: int = 600
    """Size P of the predictions y and z, of a rule from scratch."""
    bins: int = 601
    """Bins K of the action value."""
    trajectory_lstm: int = 256
    """Width of the meta-network's trajectory LSTM."""
    meta_lstm: int = 128
    """Width of the meta-RNN."""
    net_width: int = 16
    """Hidden width of the meta-network's small nets."""
    without: str = "none"
    """What to leave out of the rule, as in the paper's ablations: some of yz, q, aux_pi,
    bootstrapping and meta_rnn, joined by +."""

    evaluate_every: int = 100
    """Meta-steps between two evaluations of the rule on fresh agents; there is one before the
    first meta-step and one after the last, too."""
    evaluate_on: tuple[str, ...] = ("catch:rows=5,columns=5",)
    """Environments of the evaluation, such as members held out of a family
    (`grid:seed=1,split=held_out`); settings of their agents may follow as in `envs`."""
    evaluate_seeds: int = 2
    """Fresh agents for each of them."""
    evaluate_updates: int = 300
    """Updates that each of those makes."""
    checkpoint_every: int = 50
    """Meta-steps between two checkpoints."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(field.default, tuple):
                value = _as_tuple(field.name, getattr(self, field.name), field.default)
                object.__setattr__(self, field.name, value)
        counts = ("agents", "meta_steps", "window", "validation", "validation_unroll", "bins")
        more = ("prediction_size", "trajectory_lstm", "meta_lstm", "net_width", "evaluate_every")
        for name in (
            *counts,
            *more,
            "evaluate_seeds",
            "evaluate_updates",
            "checkpoint_every",
            "imitation_steps",
        ):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        self._require(self.bins % 2 == 1, "bins", "an odd number")
        self._require(len(self.envs) > 0, "envs", "at least one environment")
        self._require(
            bool(self.lifetimes) and min(self.lifetimes) >= 1, "lifetimes", "steps of at least 1"
        )
        self._require(self.seed >= 0, "seed", "at least 0")
        self._require(self.stride >= 0, "stride", "at least 0")
        self._require(
            isinstance(self.start, str) and self.start != "",
            "start",
            "'scratch', 'muesli', or a learned rule by its name or file",
        )
        self._require(len(self.evaluate_on) > 0, "evaluate_on", "at least one environment")
        self._require(
            self.meta_schedule in get_args(Schedule), "meta_schedule", "constant or cosine"
        )
        self._require(self.target_improvement >= 0, "target_improvement", "at least 0")
        self._require(0 <= self.average < 1, "average", "at least 0 and below 1")
        for name in ("meta_learning_rate", "max_meta_gradient", "value_learning_rate"):
            value = getattr(self, name)
            self._require(math.isfinite(value) and value > 0, name, "a positive number")

    def _require(self, holds: bool, name: str, accepted: str) -> None:
        if not holds:
            raise UserError(f"{name} is {getattr(self, name)}; expected {accepted}")

    @property
    def lived(self) -> int:
        """Updates by which a meta-step brings an agent's life forward."""
        return self.stride or self.window

    @property
    def sizes(self) -> Sizes:
        """Sizes of a rule from scratch."""
        nets, blocks = (self.net_width, 1), (self.net_width, 2)
        return Sizes(
            prediction=self.prediction_size,
            trajectory_lstm=self.trajectory_lstm,
            embedding_net=nets,
            policy_net=blocks,
            pi_hat_blocks=(self.net_width,),
            meta_lstm=self.meta_lstm,
            meta_input=(self.net_width,),
            meta_embedding_net=nets,
            meta_policy_net=blocks,
        )

    @property
    def regularisers(self) -> Regularisers:
        """Those of a Disco rule."""
        return Regularisers(
            prediction_entropy=self.prediction_entropy_cost,
            target_mean=self.target_mean_cost,
            target_kl=self.target_kl_cost,
            target_improvement=self.target_improvement,
        )

    def groups(self) -> list["Group"]:
        """The agents of each environment, with their settings; of each size in a range of them."""
        return [group for text in self.envs for group in self._spread(text)]

    def _spread(self, text: str) -> list["Group"]:
        whole = self.group(text)
        shares = distributions.spread(whole.config.env, whole.count)
        if len(shares) == 1 and shares[0].env == whole.config.env:
            return [whole]
        given = text.split(";")[1:]
        kept = [part for part in given if part.partition("=")[0].strip() != "agents"]
        return [
            Group(
                config=dataclasses.replace(whole.config, env=share.env),
                count=share.agents,
                name=";".join(
                    [share.env, *([f"agents={share.agents}"] if kept != given else []), *kept]
                ),
            )
            for share in shares
        ]

    def group(self, text: str) -> "Group":
        """The agents that a text such as `grid:size=5;agents=4` asks for."""
        env, *parts = text.split(";")
        settings: dict[str, Any] = {"agents": self.agents}
        kinds = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for part in parts:
            name, _, value = (side.strip() for side in part.partition("="))
            if name not in _OWN or not value:
                raise UserError(f"{part!r} in {text!r} is not SETTING=VALUE; {_known(name)}")
            settings[name] = _read(value, kinds[name], part)
        agents = settings.pop("agents")
        shared = {name: getattr(self, name) for name in _OWN if name != "agents"}
        if agents < 1:
            raise UserError(f"agents is {agents} in {text!r}; expected at least 1")
        config = Config(rule="", env=env.strip(), **{**shared, **settings})
        return Group(config, agents, text)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; `DiscoverConfig(**...)` reads them back."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Group:
    """Agents of one shape, which run together."""

    config: Config  # how each of them trains
    count: int
    name: str  # the text that asks for them


# Settings that the agents of an environment may have of their own.
_OWN = (
    "agents",
    "environments",
    "unroll",
    "batch",
    "replay",
    "replay_fraction",
    "learning_rate",
    "adam_epsilon",
    "discount",
    "torso",
    "hidden",
    "filters",
    "action_lstm",
    "action_hidden",
    "core",
    "frame_stack",
)


def _known(name: str) -> str:
    return specs.nearest(name, _OWN)


def _as_tuple(name: str, value: Any, like: tuple) -> tuple:
    """A tuple of the kind of another, with a single text or number as one of one."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if isinstance(like[0], str):
        if all(isinstance(x, str) for x in values):
            return values
        raise UserError(f"{name} is {value!r}; expected a text, or several")
    if all(isinstance(x, numbers.Integral) for x in values):
        return tuple(int(x) for x in values)  # which JSON can hold, whatever kind it was of
    raise UserError(f"{name} is {value!r}; expected a whole number, or several")


def _read(text: str, like: Any, part: str) -> Any:
    """Reads a value of the kind of another."""
    try:
        if isinstance(like, tuple):
            return tuple(int(width) for width in text.split(","))
        return type(like)(text)
    except ValueError as error:
        raise UserError(f"{part!r}: expected a value like {like}") from error
