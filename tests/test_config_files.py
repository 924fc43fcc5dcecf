"""Settings from files: TOML, flat or nested, and the configs of earlier runs."""

import dataclasses
import json
from pathlib import Path

import pytest

import discorl
from discorl import cli
from discorl.types import UserError

TOML = """
rule = "ppo"
env = "catch:rows=5,columns=5"
seeds = 2
steps = 4096
learning_rate = 0.002

[agent]
num_envs = 16
batch = 16
network = { hidden = [32, 16], lstm = 8 }

[agent.optimiser]
schedule = "cosine"
weight_decay = 0.01
"""

POPULATION = """
preset = "laptop"
agents = 2

[agent]
hidden = [24]
reward_scale = 2.0

[[population]]
env = "grid:size=5"
agents = 4
[population.agent]
hidden = [128, 128]
schedule = "cosine"

[[population]]
env = "chain"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(TOML)
    return path


def parsed(command, arguments, monkeypatch):
    """The config that a command makes of its arguments."""

    class Stop(BaseException):
        pass

    def stop(config, **_):
        raise Stop(config)

    monkeypatch.setattr(f"discorl.cli.{command}.{command}", stop)
    with pytest.raises(Stop) as stopped:
        cli.main([command, *map(str, arguments)])
    return stopped.value.args[0]


def test_a_file_says_what_keywords_say(file):
    config = discorl.configure(config=file)
    assert config == discorl.configure(
        rule="ppo",
        env="catch:rows=5,columns=5",
        seeds=2,
        total_timesteps=4096,
        learning_rate=0.002,
        num_envs=16,
        batch=16,
        hidden=(32, 16),
        lstm=8,
        schedule="cosine",
        weight_decay=0.01,
    )
    assert config.agent.network.lstm == 8
    assert config.updates == -(-4096 // (16 * config.agent.unroll))
    # Of PPO's recipe, where neither says anything.
    assert config.agent.unroll == discorl.configure("ppo").agent.unroll


def test_what_is_given_overrides_the_file(file):
    config = discorl.configure(env="chain", config=file, updates=7, hidden=(3,))
    assert (config.env, config.updates, config.agent.network.hidden) == ("chain", 7, (3,))
    assert (config.rule, config.agent.network.lstm) == ("ppo", 8)
    longer = discorl.configure(config=file, steps=8192)
    assert longer.updates == -(-8192 // longer.agent.steps_per_update)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {}),
        (["--updates", 5], {"updates": 5}),
        (["--total-timesteps", 9999], {"steps": 9999}),
        (["--rule", "actor_critic", "--num-envs", 8, "--batch", 8], None),
        (["--lstm", 0, "--hidden", 4, 5], {"lstm": 0, "hidden": (4, 5)}),
    ],
)
def test_options_override_the_file(options, settings, file, monkeypatch):
    if settings is None:
        settings = {"rule": "actor_critic", "num_envs": 8, "batch": 8}
    config = parsed("train", ["--config", file, *options], monkeypatch)
    assert config == discorl.configure(config=file, **settings)


def test_a_run_is_passed_back(tmp_path, monkeypatch):
    tiny = {"hidden": (4,), "num_envs": 2, "unroll": 4, "batch": 2, "updates": 1}
    made = discorl.train(rule="actor_critic", lstm=3, seed=5, **tiny, out=tmp_path / "run")
    for path in (tmp_path / "run", tmp_path / "run" / "config.json"):
        assert discorl.configure(config=path) == made.config
    again = parsed("train", ["--config", tmp_path / "run", "--seed", 6], monkeypatch)
    assert again == dataclasses.replace(made.config, seed=6)
    with pytest.raises(UserError, match="a run of `train`; expected one of `discover`"):
        discorl.configure_discovery(config=tmp_path / "run")


def test_a_population_in_a_file(tmp_path, monkeypatch):
    path = tmp_path / "population.toml"
    path.write_text(POPULATION)
    config = discorl.configure_discovery(config=path, ema=0.5)
    grid, chain = config.groups()
    assert (grid.count, chain.count) == (4, 2)
    assert (grid.agent.network.hidden, grid.agent.optimiser.schedule) == ((128, 128), "cosine")
    assert (chain.agent.network.hidden, chain.agent.optimiser.schedule) == ((24,), "constant")
    assert grid.agent.reward_scale == chain.agent.reward_scale == 2.0
    assert config.evaluate_on == discorl.configure_discovery("laptop").evaluate_on
    # The command keeps the agents of environments that it does not name, and replaces all others.
    assert parsed("discover", ["--config", path, "--ema", 0.5], monkeypatch) == config
    other = parsed("discover", ["--config", path, "--envs", "chain", "--lstm", 4], monkeypatch)
    (group,) = other.groups()
    assert (group.env, group.agent.network.hidden, group.agent.network.lstm) == ("chain", (24,), 4)
    written = tmp_path / "config.json"
    written.write_text(json.dumps({"kind": "discover", "config": config.as_dict()}))
    assert discorl.configure_discovery(config=written) == config


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "seeds = ", "a.toml: is not TOML: "),
        ("a.toml", "gamma = 0.9", "a.toml: no setting 'gamma'; did you mean 'discount'"),
        ("a.toml", "[agent]\nlr = 1", "a.toml: agent: no setting 'lr'; did you mean 'learning_ra"),
        ("a.toml", "[agent]\nnetwork = 3", "a.toml: agent: network: got 3; expected a table"),
        ("a.toml", "batch = 1\n[agent]\nbatch = 2", "a.toml: batch is given twice"),
        ("a.toml", "steps = 3\nupdates = 2", "a.toml: updates and steps are given"),
        ("a.toml", "steps = 0.5", "steps is 0.5; expected an integer"),
        ("a.toml", "unroll = true", "unroll is True; expected an integer"),
        ("a.json", "{}", "a.json: has no 'kind'"),
        ("a.yaml", "", "a.yaml: expected a TOML file, a run directory or its config.json"),
        (None, "", "missing.toml: there is no such file"),
    ],
)
def test_mistakes_in_files_are_named(name, content, message, tmp_path):
    path = tmp_path / (name or "missing.toml")
    if name:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        discorl.configure(config=path)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gamma", "discount"),
        ("lr", "learning_rate"),
        ("buffer_size", "replay"),
        ("n_envs", "num_envs"),
        ("environments", "num_envs"),
        ("core", "lstm"),
        ("max_grad_norm", "max_gradient_norm"),
    ],
)
def test_names_of_other_libraries(theirs, ours, capsys):
    with pytest.raises(UserError, match=f"no setting '{theirs}'; did you mean '{ours}'"):
        discorl.configure(**{theirs: 1})
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", f"--{theirs.replace('_', '-')}", "1"])
    assert f"did you mean --{ours.replace('_', '-')}?" in capsys.readouterr().err


def test_the_example_of_a_population(monkeypatch):
    path = Path(__file__).parent.parent / "examples" / "population.toml"
    config = discorl.configure_discovery(config=path)
    counts = {group.name: group.count for group in config.groups()}
    assert counts == {
        "grid:size=4,reward=0.1..2": 2,
        "grid:size=5,reward=0.1..2": 2,
        "grid:size=6,reward=0.1..2": 2,
        "chain:goal=0.5..5": 2,
        "memory": 2,
    }
    lstms = [group.agent.network.lstm for group in config.groups()]
    assert lstms == [0, 0, 0, 0, 32]
    assert config.tasks()["memory:seed=1,split=held_out"][1] == config.groups()[-1].agent
    assert parsed("discover", ["--config", path], monkeypatch) == config
