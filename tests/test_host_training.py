"""Training and evaluation on the host, and the environment of the documentation."""

import jax
import numpy as np
import pytest
from clocks import LIFE, LIMIT, TINY, Clock, Clocks

import discorl
from discorl.rules.files import weights
from discorl.runs.metrics import EPISODES, RETURN, STEP, TOTAL_LOSS, merge
from discorl.training import make_trainer
from discorl.training.evaluation import evaluate
from discorl.types import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "run"
    return discorl.train(**TINY, environment=Clocks(), out=path)


def test_a_run_is_acting_and_learning_in_turns_one_update_behind(trained):
    """The pipeline, played by hand without any threads."""
    config = trained.config
    trainer = make_trainer(config, Clocks())
    agent, eta, state = trainer.agent, trainer.eta, trainer.init()
    seed = int(np.random.SeedSequence([config.seed, 0]).generate_state(1)[0])
    actor = agent.actor(seed)
    learner, buffer, key = state.learner, state.replay, state.key
    actor.start(learner.params)
    root = jax.random.fold_in(jax.random.key(config.seed), 0xAC7)
    learn, behind, steps, losses = jax.jit(agent.learn), learner.params, 0, []
    for k in range(config.updates):
        rollout = actor.rollout(behind, jax.random.fold_in(root, k))
        behind = learner.params
        buffer, learner, key, metrics = learn(buffer, rollout.trajectory, learner, key, eta)
        steps += rollout.steps
        losses.append(metrics[TOTAL_LOSS])
    np.testing.assert_allclose(trained.metrics[TOTAL_LOSS], losses, rtol=1e-6)
    assert trained.metrics[STEP][-1] == steps
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
        trained.state.learner.params,
        learner.params,
    )


def test_metrics_of_episodes(trained):
    metrics = trained.metrics
    ended = metrics[EPISODES] > 0
    assert ended.any()
    assert set(metrics[RETURN][ended]) <= {3, 3.5, 4}
    assert np.isfinite(metrics["episode/number"][ended]).all()


class Secretive(Clock):
    """Tells the number of every second episode."""

    def step(self, action):
        *outcome, numbers = super().step(action)
        return *outcome, numbers if self.episode % 2 else {}


def test_metrics_that_only_some_episodes_tell():
    metrics = discorl.train(**TINY, environment=Clocks(Secretive)).metrics
    told = [1, np.nan, 3, 5, np.nan, 7]  # the fourth rollout sees the ends of two, one of them told
    np.testing.assert_array_equal(metrics["episode/number"], told)
    assert metrics[EPISODES].tolist() == [2, 2, 2, 4, 2, 2]
    together = merge({name: metrics[name] for name in ("charts/episodes", "episode/number")})
    assert 3 < together["episode/number"] < 5


def test_a_resumed_run_starts_its_environments_anew(trained, tmp_path, capsys):
    stop = []

    def on_rows(rows):
        if rows[-1]["update"] == 4:
            stop.append(True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discorl.train(**TINY, environment=Clocks(), out=tmp_path / "run", track=on_rows)
    assert stop
    result = discorl.train(resume=tmp_path / "run", environment=Clocks())
    assert result.finished
    assert "restart with other seeds" in capsys.readouterr().err
    assert result.metrics["update"].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(result.metrics[TOTAL_LOSS][:2], trained.metrics[TOTAL_LOSS][:2])


def test_evaluation_plays_whole_episodes_and_films_one(trained, tmp_path):
    film = tmp_path / "episode.gif"
    played = evaluate(trained.path, episodes=35, environment=Clocks(), film=film)
    # 16 environments: the first three play three episodes, the third of which is mortal.
    assert sorted(played.lengths[0]) == [LIFE] * 3 + [LIMIT] * 32
    np.testing.assert_array_equal(played.returns, played.lengths)
    assert played.unfinished == 0
    assert film.read_bytes().startswith(b"GIF")
    assert set(played.metrics) == {"number"}
    assert played.no_film is None


class Undrawable(Clock):
    def render(self):
        raise ImportError("no pygame")


def test_what_was_played_is_kept_if_it_cannot_be_drawn(trained, tmp_path):
    film = tmp_path / "episode.gif"
    played = evaluate(trained.path, episodes=2, environment=Clocks(Undrawable), film=film)
    assert played.returns.tolist() == [[LIMIT, LIMIT]]
    assert played.films == ()
    assert "raised ImportError: no pygame" in played.no_film
    stopped = evaluate(trained.path, episodes=1, environment=Clocks(Endless), max_steps=40)
    assert (stopped.unfinished, stopped.lengths.tolist()) == (1, [[64]])  # two looks
    assert stopped.metrics == {}


class Endless(Clock):
    def step(self, action):
        return self.observe(), 1.0, False, False, {}


def test_a_discovered_rule_learns_on_the_host(golden, tmp_path):
    rule = tmp_path / "tiny.npz"
    weights.save(rule, weights.load(golden / "meta_network.npz"), {"bins": 21})
    result = discorl.train(**TINY | {"rule": str(rule), "updates": 2}, environment=Clocks())
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()


class Lever(Clock):
    """One step, reward 1 for the second action and -1 for the first."""

    def step(self, action):
        self.time += 1
        return self.observe() * 0 + 1, float(2 * action - 1), True, False, {}


def test_an_agent_learns_on_the_host():
    settings = TINY | {"updates": 150, "replay_fraction": 0.0, "batch": 2, "learning_rate": 3e-3}
    result = discorl.train(**settings, environment=Clocks(Lever))
    assert result.metrics[RETURN][:5].mean() < 0.7
    assert result.recent_return()[0] > 0.8


def test_several_seeds_are_refused():
    with pytest.raises(UserError, match=r"seeds is 2; expected 1.*one run for each seed"):
        discorl.train(**TINY | {"seeds": 2}, environment=Clocks())
