"""Agents with memory: trained, resumed, played on the host, and in discovery."""

import signal

import clocks
import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_meta_gradient

import discorl
from discorl.agent.config import OptimiserConfig
from discorl.agent.optimiser import make_optimiser
from discorl.discovery.agents import Agents
from discorl.networks import Network, Recurrence
from discorl.runs.metrics import TOTAL_LOSS
from discorl.training.evaluation import evaluate

KEY = jax.random.key(7)

# --- runs -----------------------------------------------------------------------------------------

# The cue, then the question: half of all answers are right by chance, for a return of 0.
MEMORY = {
    "env": "memory:cues=2,delay=1",
    "rule": "actor_critic",
    "num_envs": 16,
    "batch": 32,
    "replay": 64,
    "replay_fraction": 0.5,
    "unroll": 7,  # rollouts begin at cues and at questions
    "hidden": (16,),
    "learning_rate": 1e-2,
    "updates": 300,
    "checkpoint_every": 300,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return discorl.train(**MEMORY, lstm=16, out=tmp_path_factory.mktemp("memory") / "run")


def test_memory_is_learned_with_an_lstm_only(trained):
    assert trained.recent_return()[0] > 0.9
    assert np.any(trained.state.replay.storage.recurrent_state[0])
    without = discorl.train(**MEMORY)
    assert abs(without.recent_return()[0]) < 0.2
    # The same in evaluation, where nothing is left to chance.
    played = evaluate(trained.path, episodes=50, greedy=True)
    np.testing.assert_array_equal(played.returns, 1.0)


def test_a_resumed_run_with_an_lstm_is_the_same_bit_for_bit(trained, tmp_path, monkeypatch):
    few = MEMORY | {"updates": 5, "checkpoint_every": 2, "lstm": 16}  # ends amid episodes
    whole = discorl.train(**few, out=tmp_path / "whole")
    assert any(np.any(x) for x in jax.tree.leaves(whole.state.actor.recurrent_state))
    monkeypatch.setattr("discorl.training.config.CALL_SECONDS", 0.0)
    stop = lambda rows: signal.raise_signal(signal.SIGINT)  # noqa: E731
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        discorl.train(**few, out=tmp_path / "cut", track=stop)
    again = discorl.train(resume=tmp_path / "cut")
    assert again.finished
    discoveries.assert_same(again.state, whole.state)
    np.testing.assert_array_equal(again.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])


class Metronome(clocks.Clock):
    """Reward 1 for going on from action 0 to 1 and back, though all moments look alike."""

    def observe(self):
        return np.ones(2, np.float32)

    def step(self, action):
        expected = self.time % 2
        seen, _, *ends = super().step(action)
        return seen, float(action == expected), *ends


def counting(spec, observation):
    """A network of the user's own, which knows how many moments of an episode it has seen."""

    def step(params, inputs, state):
        return state % 2, state + 1

    def apply(params, odd):
        logits = params * jnp.stack([1 - odd, odd], axis=-1)
        return {"logits": logits, "value": jnp.zeros(odd.shape)}

    state = jax.ShapeDtypeStruct((), jnp.float32)
    recurrence = Recurrence(state, lambda params, seen: seen[:, 0], step)
    return Network(lambda key, seen: jnp.float32(50.0), apply, recurrence=recurrence)


@pytest.mark.parametrize("greedy", [False, True])
def test_agents_remember_where_the_host_plays(greedy, tmp_path):
    """A network of the user's own, trained for an update, played and filmed."""
    environment = clocks.Clocks(Metronome)
    settings = clocks.TINY | {"updates": 2, "learning_rate": 1e-6}
    own = {"environment": environment, "network": counting}
    run = discorl.train(**settings, **own, out=tmp_path / "run").path
    film = tmp_path / "episode.gif"
    played = evaluate(run, episodes=40, greedy=greedy, film=film, **own)
    assert set(played.lengths.ravel().tolist()) == {clocks.LIFE, clocks.LIMIT}
    np.testing.assert_array_equal(played.returns, played.lengths)
    assert film.exists()


# --- discovery ------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_meta_gradient_goes_through_the_lstm():
    """Recorded and in mixed mode, against backward mode through a plain scan."""
    with jax.enable_x64(True):
        optimizer = make_optimiser(OptimiserConfig(learning_rate=0.02))
        gradient, eta, loss = test_meta_gradient.problem(optimizer, mixed_mode=True, lstm=3)
        discoveries.assert_all_close(gradient, jax.jit(jax.grad(loss))(eta), 1e-9)


def test_a_meta_step_of_agents_with_an_lstm():
    population = {"env": "memory:cues=2,delay=1..2", "agents": 1, "agent": {"lstm": 3}}
    config = discorl.configure_discovery(**discoveries.TINY | {"population": population})
    (group,) = config.groups()
    assert group.agent.network.lstm == 3
    agents = Agents(group, config, discoveries.RULE)
    state = jax.jit(agents.begin)(KEY, jnp.int32(0))
    assert state.training.learner.params["lstm"]["w"].shape == (6 + 3, 4 * 3)
    gradient, state, metrics = jax.jit(agents.meta_step)(discoveries.ETA, state)
    norm = float(optax.tree.norm(gradient))
    assert np.isfinite(norm)
    assert norm > 0
    assert np.isfinite(metrics["meta/loss"])
    for actor in (state.training.actor, state.validation):
        assert all(x.shape[1:] == (3,) for x in actor.recurrent_state)
    assert np.any(state.training.replay.storage.recurrent_state[0])
