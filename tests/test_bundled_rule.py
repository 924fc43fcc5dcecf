"""The rule that comes with the package: what its file says, and that agents learn by it."""

import numpy as np
import pytest
from conftest import TESTS

import discorl
from discorl import cli
from discorl.rules.files import library, weights
from discorl.training.config import DEFAULT_RULE


def test_its_file_says_where_it_comes_from():
    file = weights.load(library.find(DEFAULT_RULE))
    assert file.path.parent == library._BUNDLED
    found = file.metadata
    config = found["config"]
    assert (config["seed"], config["start"]) == (found["seed"], "muesli")
    assert config["preset"] == "laptop"
    assert 0 < found["meta_steps"] <= config["meta_steps"]
    kept_apart = ("held_out", "bandit", "cliff")
    assert not any(name in env for env in config["envs"] for name in kept_apart)
    card = (TESTS.parent / "docs" / "records" / f"{DEFAULT_RULE}.md").read_text(encoding="utf-8")
    assert found["commit"][:7] in card
    assert str(found["meta_steps"]) in card


def test_it_is_small_enough_to_come_with_the_package():
    assert library.find(DEFAULT_RULE).stat().st_size < 300_000


def test_it_is_listed_with_what_it_was_discovered_on(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["rules", "list"])
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith(DEFAULT_RULE))
    assert "bundled" in line
    assert "chain, tabular, grid, windy_catch" in line


@pytest.mark.long
def test_fresh_agents_learn_catch_by_it():
    result = discorl.train(env="catch:rows=5,columns=5", preset="small", seeds=3)
    assert result.config.rule == DEFAULT_RULE
    assert np.mean(result.recent_return()) > 0.9
