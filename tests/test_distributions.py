"""Agents that are spread over the sizes of a family."""

import csv

import numpy as np
import pytest
from discoveries import RULE, TINY

import discorl
from discorl import cli
from discorl.discovery import distributions
from discorl.discovery.methods import MetaGradients
from discorl.runs.metrics import RETURN
from discorl.types import UserError


def shares(env: str, agents: int) -> dict[str, int]:
    return dict(distributions.spread(env, agents))


def test_agents_are_shared_out_as_evenly_as_can_be() -> None:
    three = ["grid:size=4", "grid:size=5", "grid:size=6"]
    assert shares("grid:size=4..6", 6) == dict.fromkeys(three, 2)
    assert shares("grid:size=4..6", 8) == dict(zip(three, (3, 3, 2), strict=True))
    assert shares("grid:size=5..5", 3) == {"grid:size=5": 3}
    assert distributions.notice("grid:size=4..6", 3) is None


def test_too_few_agents_get_sizes_at_even_distances_and_the_user_is_told() -> None:
    assert list(shares("grid:limit=16..64", 4)) == [f"grid:limit={n}" for n in (16, 32, 48, 64)]
    assert shares("grid:size=4..6", 2) == {"grid:size=4": 1, "grid:size=6": 1}
    assert shares("grid:size=4..6", 1) == {"grid:size=4": 1}
    assert len(shares("tabular:limit=1..1000000000", 7)) == 7
    told = distributions.notice("grid:size=4..6", 2)
    assert told is not None
    assert "3 environments and has agents=2: only grid:size=4, grid:size=6" in told


def test_several_ranges_stand_for_their_combinations() -> None:
    env = " chain: length = 3..4 ,goal=1..2, actions=2..3,seed=7"
    expected = [
        f" chain:length={length},goal=1..2,actions={actions},seed=7"
        for length in (3, 4)
        for actions in (2, 3)
    ]
    assert shares(env, 4) == dict.fromkeys(expected, 1)
    assert list(shares(env, 2)) == [expected[0], expected[3]]


@pytest.mark.parametrize(
    "env", ["grid:respawn=0..0.5,seed=1", "catch:rows=3..5", "gymnax:Pong,a=1..2"]
)
def test_what_is_no_size_of_a_family_is_left_alone(env: str) -> None:
    assert distributions.spread(env, 5) == [(env, 5)]
    assert distributions.notice(env, 1) is None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "grid:size=2..4",
            "grid:size=2..4 asks for grid:size=2: grid: size is 2; expected at least 3",
        ),
        ("grid:size=4..5.5", "expected whole numbers, such as size=4..6"),
        ("grid:size=3..4,objects=1..3", "asks for grid:size=3,objects=3: grid: objects is 3"),
        ("grid:size=4..5,colour=3", "grid has no parameter 'colour'"),
        ("grid:respawn=0..2,seed=1", "grid: respawn is 0.0..2.0; expected from 0 to 1"),
    ],
)
def test_sizes_are_refused_with_a_reason(env: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        distributions.spread(env, 6)
    assert message in str(error.value)


def test_comparisons_are_about_one_size(tmp_path) -> None:
    environments = ["catch", "grid:size=4..6"]
    with pytest.raises(UserError, match=r"range of sizes.*expected one size, such as grid:size=4"):
        discorl.compare(rules=["actor_critic"], environments=environments, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_groups_have_the_agents_of_their_environment() -> None:
    bandits = {"env": "bandit:arms=2..3", "agents": 5, "agent": {"hidden": (8, 4)}}
    config = discorl.configure_discovery(population=("catch", bandits, "grid:size=4..5"), agents=2)
    groups = [(group.name, group.env, group.count) for group in config.groups()]
    assert groups == [
        ("catch", "catch", 2),
        ("bandit:arms=2", "bandit:arms=2", 3),
        ("bandit:arms=3", "bandit:arms=3", 2),
        ("grid:size=4", "grid:size=4", 1),
        ("grid:size=5", "grid:size=5", 1),
    ]
    hidden = [group.agent.network.hidden for group in config.groups()]
    assert hidden[1:3] == [(8, 4), (8, 4)]
    assert (8, 4) not in (hidden[0], *hidden[3:])


def test_returns_are_told_apart_by_size() -> None:
    config = discorl.configure_discovery(
        **TINY | {"population": ({"env": "bandit:contexts=2..3", "agents": 3}, "bandit")}
    )
    told = MetaGradients(config, RULE)
    assert told._groups == [0, 0, 1, 2, 2]
    returns = told._returns(np.array([1.0, 2.0, 4.0, 8.0, np.nan]))
    assert returns == {
        "charts/episodic_return/bandit:contexts=2": 1.5,
        "charts/episodic_return/bandit:contexts=3": 4.0,
        "charts/episodic_return/bandit": 8.0,
    }


@pytest.mark.long
def test_a_run_tells_the_sizes_apart(tmp_path) -> None:
    population = {"env": "bandit:contexts=2..3", "agents": 3}
    settings = {"population": population, "meta_steps": 1, "evaluate_updates": 2}
    result = discorl.discover(**TINY | settings, out=tmp_path / "run")
    with (tmp_path / "run" / "agents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group"] for row in rows] == ["0", "0", "1"]
    names = ["bandit:contexts=2", "bandit:contexts=3"]
    columns = [name for name in result.metrics if name.startswith("charts/episodic_return/")]
    assert columns == [f"{RETURN}/{name}" for name in names]
    earned = [float(row[RETURN]) for row in rows]
    assert len(set(earned)) == 3
    expected = [np.mean(earned[:2]), earned[2]]
    np.testing.assert_allclose([result.metrics[name][0] for name in columns], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--envs", "grid:size=6..4"], "size=6..4 in 'grid:size=6..4' ends below where it begins"),
        (["--envs", "grid:size=a..b"], "size=a..b is not a range, LOW..HIGH"),
        (["--envs", "grid:permuted=0..1"], "permuted=0..1 is a range; expected a single bool"),
        # What is left out is told before anything else is looked at.
        (
            ["--envs", "grid:size=4..6", "--start", "none"],
            "agents=2: only grid:size=4, grid:size=6",
        ),
    ],
)
def test_what_the_command_line_says(flags, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["discover", *flags])
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
