"""The search for recipes: equally many settings for all rules, all of them valid."""

import recipe_search

from discorl.comparison import configure_comparison
from discorl.training import configure

HAND_DESIGNED = [rule for rule in recipe_search.RULES if rule != "disco103"]


def test_every_rule_gets_as_many_settings_and_programs():
    for rule in recipe_search.RULES:
        drawn = [recipe_search.draw(rule, i) for i in range(recipe_search.SETTINGS)]
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


def test_the_settings_are_accepted_and_the_best_make_a_suite(tmp_path):
    rows = {}
    for rule in HAND_DESIGNED:
        for i in range(recipe_search.SETTINGS):
            entry = recipe_search.draw(rule, i)
            configure(entry["rule"], "gymnax:Breakout-MinAtar", **entry["settings"])
        rows[rule] = [{"rule": entry["rule"], **entry["settings"], "return": 1.0}]
    file = tmp_path / "recipes.toml"
    file.write_text(recipe_search.suite(rows, "minatar"))
    config = configure_comparison(file)
    assert [rule.label for rule in config.rules] == HAND_DESIGNED
    assert config.steps == 2_000_000
    for rule in config.rules:
        training = config.training(rule, config.environments[0], *config.rates(rule))
        drawn = recipe_search.draw(rule.label, recipe_search.SETTINGS - 1)
        assert training.agent.optimiser.learning_rate == drawn["settings"]["learning_rate"]
        assert training.agent.num_envs == drawn["settings"]["num_envs"]
