"""The settings of a discovery run: the rule, its population of agents, and its evaluations."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from discorl.agent.config import AgentConfig, OptimiserConfig, Schedule
from discorl.discovery import distributions
from discorl.discovery.strategy import EvolutionConfig
from discorl.envs import canonical
from discorl.rules.meta_network import Sizes
from discorl.rules.regularisers import Regularisers
from discorl.types import UserError, settings
from discorl.types.validation import MOST_SEED, Fields, bounded, refuse

Task = TypeVar("Task", bound="TaskConfig")
MethodName = Literal["meta_gradient", "es", "both"]
Objective = Literal["actor_critic", "meta_critic"]


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """An environment, and how the agents in it differ from the default agent."""

    env: str
    """The environment: a family of tasks (`grid:size=5`) or a single one."""
    agent: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Settings of its agents that differ from those of `DiscoverConfig.agent`, by flat or nested
    names: `{"lstm": 64}`."""

    def __post_init__(self) -> None:
        if not isinstance(self.env, str) or not self.env.strip():
            refuse("env", self.env, "the name of an environment")
        object.__setattr__(self, "env", canonical(self.env.strip()))
        given = settings.flatten(AgentConfig, self.agent, f"{self.env}: ")
        object.__setattr__(self, "agent", given)

    def agent_like(self, default: AgentConfig) -> AgentConfig:
        """One of its agents: the default with the settings of this task."""
        try:
            return settings.replace(default, **self.agent)
        except UserError as error:
            raise UserError(f"{self.env}: {error}") from error


@dataclasses.dataclass(frozen=True)
class GroupConfig(TaskConfig):
    """Agents of the population that live in one environment.

    Every life draws a member of a family. Ranges define the distribution:
    `grid:size=4..6,respawn=0.0..0.5` spreads agents over sizes, and every life draws the rest.
    """

    agents: int | None = None
    """Number of agents; by default `DiscoverConfig.agents`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents is not None:
            Fields(self, self.env).integer("agents", least=1)


@dataclasses.dataclass(frozen=True)
class Group:
    """Agents of one shape, which run together."""

    env: str  # without ranges of sizes
    agent: AgentConfig
    count: int
    name: str  # in metrics


@dataclasses.dataclass(frozen=True)
class DiscoverConfig:
    """Settings of a discovery run; a run is a function of them."""

    population: tuple[GroupConfig, ...] = (GroupConfig("catch:rows=5,columns=5"),)
    """The agents by environment."""
    agents: int = bounded(2, least=1)
    """Default number of agents per environment."""
    block_size: int = bounded(0, least=0)
    """Agents of an environment that run as one program on one device; 0: all of them. Blocks are
    spread over the devices. Results depend on this number, and never on the devices."""
    agent: AgentConfig = AgentConfig(
        optimiser=OptimiserConfig(learning_rate=3e-4),
        num_envs=10,
        unroll=29,
        batch=96,
        replay_fraction=0.9,
    )
    """The default agent of the population and of the evaluations."""
    preset: str = "demo"
    """Defaults of the other settings."""
    seed: int = bounded(0, least=0, most=MOST_SEED)
    """Seed of the run."""
    method: MethodName = "meta_gradient"
    """How the rule is improved: by gradients through windows of updates, by an evolution strategy
    over whole lives, or by both in one population. With `both`, the parts named by `parts` evolve,
    and gradients move all others."""
    evolution: EvolutionConfig = EvolutionConfig()
    """The evolution strategy."""
    meta_steps: int = bounded(800, least=1)
    """Number of meta-steps; with `es`, of generations."""
    rule: str = "disco"
    """Rule to discover, if it starts from scratch: `disco`, with the sizes below, or any other rule
    with parameters, optionally with settings: `lean`, `package.module:MyRule,setting=3`."""
    start: str = "scratch"
    """Learned rule to start from, a name or a file. `scratch` is a new rule, `muesli` a new `disco`
    rule trained to imitate Muesli's update, and `imitation:lean2` one trained to imitate a lean
    rule."""
    imitation_steps: int = bounded(2000, least=1)
    """Steps of that imitation."""
    rules_path: str | None = None
    """Folder or file to look for the starting rule in first."""

    window: int = bounded(20, least=1)
    """Agent updates that a meta-gradient goes through."""
    stride: int = bounded(0, least=0)
    """Agent updates from the start of one window to that of the next; 0: as many as `window`. With
    fewer, windows overlap (only in environments written in JAX); with more, no meta-gradient goes
    through the updates between them."""
    objective: Objective = "actor_critic"
    """What meta-gradients maximise: with `actor_critic`, as in the paper, the return at the end of
    a window; with `meta_critic` the return at the end of the life, predicted from there by a
    regression over earlier lives."""
    lifetimes: tuple[int, ...] = bounded((20_000, 50_000, 100_000, 200_000), least=1, empty=False)
    """Environment steps of a life, each drawn with a probability inverse to its length."""
    meta_learning_rate: float = bounded(1e-3, above=0)
    """Learning rate of the rule."""
    meta_schedule: Schedule = "constant"
    """Its schedule over the meta-steps; `cosine` ends at 0."""
    ema: float = bounded(0.0, least=0, below=1)
    """Decay of the EMA of the rule's parameters, which is evaluated and written; 0: no EMA."""
    per_agent_adam: bool = True
    """Whether each agent's meta-gradient goes through its own Adam before the mean."""
    max_meta_gradient: float = bounded(1e4, above=0)
    """Largest norm of an agent's meta-gradient: larger ones are dropped, as are those that are not
    finite."""
    validation_envs: int = bounded(48, least=1)
    """Environments of the validation rollout, on which an updated agent is evaluated."""
    validation_unroll: int = bounded(29, least=1)
    """Transitions of each trajectory of the validation rollout."""
    entropy_cost: float = bounded(0.01, least=0)
    """Reward for the policy's entropy on the validation data."""
    regularisers: Regularisers = Regularisers()
    """Regularisers of a Disco rule."""
    mixed_mode: bool = False
    """Whether the agents' gradient is differentiated forward over backward: the same result, with a
    different use of memory and time."""
    value_hidden: tuple[int, ...] = bounded((256, 256), least=1)
    """Widths of the meta-value function's network."""
    value_learning_rate: float = bounded(3e-4, above=0)
    """Learning rate of the meta-value function."""
    value_discount: float = bounded(0.997, least=0, most=1)
    """Discount of the meta-value function."""
    value_lambda: float = bounded(0.95, least=0, most=1)
    """Decay of its traces."""

    prediction_size: int = bounded(600, least=1)
    """Size P of the predictions y and z of a rule from scratch."""
    bins: int = bounded(601, least=1)
    """Bins K of the action value."""
    bin_spacing: float = bounded(1.0, above=0)
    """Distance between neighbouring bins; see `Disco`. Small rewards need fine bins."""
    trajectory_lstm: int = bounded(256, least=1)
    """Width of the meta-network's trajectory LSTM."""
    meta_lstm: int = bounded(128, least=1)
    """Width of the meta-RNN."""
    net_width: int = bounded(16, least=1)
    """Hidden width of the meta-network's small nets."""
    without: str = "none"
    """Ablated parts of the rule, as in the paper: some of yz, q, aux_pi, bootstrapping and
    meta_rnn, joined by +."""

    evaluate_every: int = bounded(100, least=1)
    """Meta-steps between two evaluations of the rule on fresh agents. There is also one before the
    first meta-step and one after the last."""
    evaluate_on: tuple[TaskConfig, ...] = (TaskConfig("catch:rows=5,columns=5"),)
    """Environments of the evaluation, such as held-out members of a family
    (`grid:seed=1,split=held_out`)."""
    evaluate_seeds: int = bounded(2, least=1)
    """Fresh agents per environment of the evaluation."""
    evaluate_updates: int = bounded(300, least=1)
    """Updates of each of these agents."""
    checkpoint_every: int = bounded(50, least=1)
    """Meta-steps between two checkpoints."""

    other_names: ClassVar[Mapping[str, str]] = {
        "average": "ema",
        "ema_decay": "ema",
        "meta_lr": "meta_learning_rate",
        "meta_gradient_steps": "window",
        "validation": "validation_envs",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "population", _tasks("population", self.population, GroupConfig))
        object.__setattr__(self, "evaluate_on", _tasks("evaluate_on", self.evaluate_on, TaskConfig))
        fields = Fields(self)
        known = "'scratch', 'muesli', 'imitation:LEAN_RULE', or a learned rule by its name or file"
        fields.require(isinstance(self.start, str) and self.start != "", "start", known)
        fields.declared()
        fields.require(self.bins % 2 == 1, "bins", "an odd number")

    @property
    def in_pairs(self) -> bool:
        """Whether the agents of a population live in pairs, with opposite perturbations."""
        return self.method == "both" and bool(self.evolution.parts)

    @property
    def updates_per_meta_step(self) -> int:
        """Updates that a meta-step adds to an agent's life."""
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

    def groups(self) -> list[Group]:
        """The groups of agents; an environment with ranges of sizes has one group per size."""
        names: dict[str, list[AgentConfig]] = {}
        groups = []
        for entry in self.population:
            agent = entry.agent_like(self.agent)
            for env, count in distributions.spread(entry.env, entry.agents or self.agents):
                groups.append(Group(env, agent, count, _unique_name(names, env, agent)))
        return groups

    def tasks(self) -> dict[str, tuple[str, AgentConfig]]:
        """The evaluation's environments and agents, by their names in metrics."""
        names: dict[str, list[AgentConfig]] = {}
        tasks = {}
        for entry in self.evaluate_on:
            agent = entry.agent_like(self.agent)
            tasks[_unique_name(names, entry.env, agent)] = entry.env, agent
        return tasks

    def as_dict(self) -> dict[str, Any]:
        """The settings for JSON; `settings.build` reads them back."""
        return dataclasses.asdict(self)


def _tasks(name: str, values: Any, kind: type[Task]) -> tuple[Task, ...]:
    """Tasks from names, tables and instances, or from one of these."""
    several = values if isinstance(values, list | tuple) else (values,)
    if not several:
        refuse(name, values, "at least one environment")
    return tuple(_task(name, value, kind) for value in several)


def _task(name: str, value: Any, kind: type[Task]) -> Task:
    if type(value) is kind:
        return value
    if isinstance(value, str):
        return kind(value)
    known = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(value, Mapping) or not {"env"} <= value.keys() <= set(known):
        refuse(name, value, f"names of environments, or tables of {', '.join(known)}")
    return kind(**value)


def _unique_name(names: dict[str, list[AgentConfig]], env: str, agent: AgentConfig) -> str:
    """The environment, with a number if it appeared before with different agents."""
    kinds = names.setdefault(env, [])
    if agent not in kinds:
        kinds.append(agent)
    place = kinds.index(agent)
    return env if place == 0 else f"{env} #{place + 1}"
