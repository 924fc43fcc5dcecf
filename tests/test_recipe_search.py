"""The search for recipes: equally many settings for all rules, all of them valid."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import recipe_search
import trusted_curves

import discorl
from discorl.comparison import configure_comparison, runner
from discorl.comparison.results import final_cells
from discorl.comparison.scales import Scale
from discorl.training import configure

INSTALLED = [rule for rule in recipe_search.RULES if rule != "disco103"]  # without a download
CATCH = dataclasses.replace(recipe_search.KINDS["minatar"], envs=("catch",), steps=100)


@pytest.mark.parametrize("kind", recipe_search.KINDS.values(), ids=recipe_search.KINDS)
def test_every_rule_gets_as_many_settings_and_programs(kind):
    for rule in recipe_search.RULES:
        drawn = [recipe_search.draw(rule, i, kind) for i in range(recipe_search.SETTINGS)]
        rates = [entry["settings"].pop("learning_rate") for entry in drawn]
        low, high = recipe_search.LEARNING_RATES
        assert all(low <= rate <= high for rate in rates)
        # In each group, one from every third of the range, and a program of its own.
        for first in (2, 5):
            thirds = [(rate / low) ** 3 / (high / low) for rate in rates[first : first + 3]]
            assert thirds[0] <= 1 <= thirds[1] <= high / low <= thirds[2]
        programs = [str((entry["rule"], entry["settings"])) for entry in drawn]
        assert programs == [programs[i] for i in (0, 0, 2, 2, 2, 5, 5, 5)]
        assert len(set(programs)) == 3
        assert drawn[0]["settings"] == {}  # the rule's own recipe


@pytest.mark.parametrize("kind", recipe_search.KINDS.values(), ids=recipe_search.KINDS)
def test_the_settings_of_a_kind_are_accepted(kind):
    for rule in INSTALLED:
        for i in range(recipe_search.SETTINGS):
            entry = recipe_search.draw(rule, i, kind)
            configure(entry["rule"], kind.envs[0], **entry["settings"])


def test_the_best_settings_make_a_suite(tmp_path):
    rows = {}
    for rule in INSTALLED:
        entry = recipe_search.draw(rule, recipe_search.SETTINGS - 1)
        rows[rule] = [{"rule": entry["rule"], **entry["settings"], "score": 1.0, "returns": {}}]
    rows["gone"] = [{"rule": "gone", "learning_rate": 1e-3, "score": None, "returns": {}}]
    rows["absent"] = []
    file = tmp_path / "recipes.toml"
    file.write_text(recipe_search.suite(rows, "minatar"))
    config = configure_comparison(file)
    assert [rule.label for rule in config.rules] == INSTALLED
    assert config.steps == 2_000_000
    for rule in config.rules:
        training = config.training(rule, config.environments[0], *config.rates(rule))
        drawn = recipe_search.draw(rule.label, recipe_search.SETTINGS - 1)
        assert training.agent.optimiser.learning_rate == drawn["settings"]["learning_rate"]
        assert training.agent.num_envs == drawn["settings"]["num_envs"]


def test_disco103_has_the_seeds_of_the_suite():
    rows = {"disco103": [{"rule": "disco103", "learning_rate": 1e-3, "score": 1.0}]}
    assert "seeds = 3," in recipe_search.suite(rows, "minatar")
    assert "seeds" not in recipe_search.suite(rows, "laptop")


def test_the_best_setting_comes_first_and_a_failed_one_last():
    entries = [recipe_search.draw("ppo", i) for i in range(4)]
    config = configure_comparison(rules=entries, environments=["catch", "chain"], seeds=1)
    cells = list(final_cells(config, {}))
    returns = {"catch": ([], [1.0], [2.0, 4.0], [1.0]), "chain": ([5.0], [9.0], [7.0], [5.0])}
    final = {}
    for cell in cells:
        found = returns[cell.environment.label][int(cell.rule.label.split()[1])]
        final[cell] = {"returns": found} if found else {"status": "failed"}
    scales = {"catch": Scale(0, 1), "chain": Scale(5, 9)}
    results = SimpleNamespace(final=final, scales=scales)
    tried = recipe_search.ranking(results, ("ppo",))["ppo"]
    assert [row["score"] for row in tried] == [1.75, 1.0, 0.5, None]
    assert tried[0]["returns"] == {"catch": 3.0, "chain": 7.0}
    rates = [entry["settings"]["learning_rate"] for entry in entries]
    assert [row["learning_rate"] for row in tried] == [rates[i] for i in (2, 1, 3, 0)]


def test_recipes_do_not_change_the_rewards_of_the_comparison_with_rejax():
    for task, ours in itertools.product(trusted_curves.TASKS, trusted_curves.OURS.values()):
        config = configure(ours.rule, f"gymnax:{task.name}", **ours.settings)
        assert config.agent.reward_scale == 1


def test_a_search_is_continued_only_with_the_same_arguments(tmp_path, monkeypatch):
    config = recipe_search.configure(["ppo"], CATCH)
    runner.create(tmp_path / "search", config).close()
    monkeypatch.setattr(discorl, "compare", lambda **given: given["resume"])
    assert recipe_search.search(config, tmp_path / "search") == tmp_path / "search"
    longer = dataclasses.replace(CATCH, steps=200)
    other = recipe_search.configure(["ppo"], longer)
    with pytest.raises(discorl.UserError, match="holds a search with other rules"):
        recipe_search.search(other, tmp_path / "search")
