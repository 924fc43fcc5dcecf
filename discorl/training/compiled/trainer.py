"""The trainer for environments in JAX: acting and learning in one compiled program."""

import functools
from collections.abc import Callable, Hashable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from discorl.agent.learner import Learner
from discorl.agent.optimiser import with_learning_rate
from discorl.envs import Environment
from discorl.runs import processes
from discorl.runs.memory import runtime_reason
from discorl.runs.progress import doing
from discorl.training import capacity
from discorl.training.compiled import play
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.compiled.placement import place, placement
from discorl.training.config import TrainConfig
from discorl.training.flops import flops
from discorl.training.state import TrainState
from discorl.training.trainer import Episodes, Trainer
from discorl.types import Key, Params, UserError, settings

COMPILING = "compiling, usually for less than a minute"


class ProgramCache:
    """Compiled functions of training, shared by runs that differ only in data.

    Learning rates and seeds are part of the state, so they share a program. Environments and
    networks are identified by their names in the settings.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, Callable] = {}

    def get(self, key: Hashable, make: Callable[[], Callable]) -> Callable:
        """The program for a key, made if necessary."""
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]


class CompiledTrainer(Trainer):
    """See `Trainer`; several seeds train side by side in one program."""

    environment: Environment
    max_steps = 10_000

    def __init__(
        self,
        config: TrainConfig,
        environment: Environment,
        learner: Learner,
        eta: Params,
        programs: ProgramCache | None = None,
    ) -> None:
        super().__init__(config, learner, eta)
        self.environment = environment
        self.agent = CompiledAgent(config.agent, environment, learner)
        self._programs = programs or ProgramCache()
        self._run: Callable | None = None

    def init(self) -> TrainState:
        config = self.config
        keys = jax.vmap(jax.random.key)(jnp.arange(config.seed, config.seed + config.seeds))
        doing(COMPILING)
        init = self._programs.get(("init", self._key()), self._make_init)
        state = init(keys if len(keys) > 1 else keys[0])
        # The program may have been compiled for a run with another learning rate.
        return with_learning_rate(state, config.agent.optimiser.learning_rate)

    def _place(self, state: TrainState) -> TrainState:
        shardings = placement(self.config, state)
        return state if shardings is None else place(state, shardings)

    def start(self, state: TrainState) -> None:
        make = functools.partial(self._make_run, state)
        doing(COMPILING)
        self._run = self._programs.get(("run", self._key()), make)
        doing("working")

    def run(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        if self._run is None:
            self.start(state)
        assert self._run is not None
        try:
            state, metrics = self._run(self._place(state), self.eta, count)
            return state, jax.device_get(metrics), count
        except jax.errors.JaxRuntimeError as error:
            if processes.count() > 1:  # most likely another one has died; all restart
                raise
            # The state was donated, so there is nothing left to save.
            raise UserError(
                f"{self.config.env} cannot continue: {runtime_reason(error)}"
            ) from error

    def _play(
        self, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
    ) -> Episodes:
        one = self._programs.get(
            ("play", self._key(), episodes, greedy, max_steps),
            lambda: play.make_play(self.agent, episodes, greedy, max_steps),
        )
        return play.play(one, self.params_by_seed(params), key)

    def _film(self, params: Params, key: Key, greedy: bool, max_frames: int) -> list[np.ndarray]:
        return play.film(self.agent, params, key, greedy, max_frames)

    def flops_per_update(self) -> float | None:
        state = jax.eval_shape(self.agent.init, jax.random.key(0), self.config.updates)
        return flops(self.agent.update, state, self.eta)

    def _make_init(self) -> Callable:
        init = functools.partial(self.agent.init, lifetime=self.config.updates)
        return jax.jit(jax.vmap(init) if self.config.seeds > 1 else init)

    def _make_run(self, state: TrainState) -> Callable:
        function = self.agent.run
        if self.config.seeds > 1:
            function = jax.vmap(function, in_axes=(0, None, None))
        count = jax.ShapeDtypeStruct((), jnp.int32)
        out = None
        if (shardings := placement(self.config, state)) is not None:
            state = jax.tree.map(
                lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
                state,
                shardings,
            )
            mesh = jax.tree.leaves(shardings)[0].mesh
            processes.connect(mesh)  # before compiling, whose duration varies between processes
            out = shardings, NamedSharding(mesh, PartitionSpec())  # metrics are read everywhere
        run = jax.jit(function, donate_argnums=0, out_shardings=out)
        compiled = run.lower(state, self.eta, count).compile()
        capacity.check_program(self.config, compiled)
        return compiled

    def _key(self) -> Hashable:
        """Everything that the programs depend on."""
        return settings.replace(self.config, learning_rate=1.0, seed=0), self.learner.rule
