"""The rules that come with the package: what their files say, and that agents learn by them."""

import numpy as np
import pytest
from conftest import TESTS

import discorl
from discorl import cli
from discorl.rules.files import library
from discorl.training.config import DEFAULT_RULE

# Tasks that had no part in the discovery of a rule, on which it was chosen or is tested.
KEPT_APART = {
    "lean1": ("held_out", "bandit", "windy_catch", "inventory", "gambler"),
    "lean2": ("held_out", "bandit", "windy_catch", "queues", "offers"),
    "discorl5": ("held_out", "bandit", "windy_catch"),
}


@pytest.mark.parametrize("name", KEPT_APART)
def test_a_file_says_where_its_rule_comes_from(name):
    path = library.find(name)
    assert path.parent == library._BUNDLED
    archive = library.read(path)
    found, config = archive.metadata, archive.metadata["config"]
    assert config["seed"] == found["seed"]
    least = 0 if config["start"].startswith("imitation:") else 1
    assert least <= found["meta_steps"] <= config["meta_steps"]
    population = config.get("envs") or [each["env"] for each in config["population"]]
    assert not any(word in env for env in population for word in KEPT_APART[name])
    card = (TESTS.parent / "docs" / "records" / f"{name}.md").read_text(encoding="utf-8")
    assert found["commit"][:7] in card
    assert str(found["meta_steps"]) in card
    if name == DEFAULT_RULE:
        assert archive.sha256 in card


@pytest.mark.parametrize("name", KEPT_APART)
def test_they_are_small_enough_to_come_with_the_package(name):
    assert library.find(name).stat().st_size < 300_000


def test_they_are_listed_with_what_they_were_discovered_on(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["rules", "list"])
    lines = capsys.readouterr().out.splitlines()
    line = next(x for x in lines if x.startswith(DEFAULT_RULE))
    assert "bundled" in line
    assert "chain, tabular, grid, cliff" in line


def test_fresh_agents_learn_catch_by_the_default():
    result = discorl.train(env="catch:rows=5,columns=5", preset="small", seeds=3, updates=300)
    assert result.config.rule == DEFAULT_RULE
    assert np.mean(result.recent_return()) > 0.9
