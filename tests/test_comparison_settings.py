"""What is compared: suites, entries by name, rules that may be missing, and refusals."""

import json

import pytest
from comparisons import TINY

import discorl
from discorl import cli
from discorl.comparison import configure_comparison, load, suites
from discorl.comparison.entries import RuleEntry
from discorl.rules import REGISTRY, is_learned
from discorl.types import UserError


@pytest.mark.parametrize("name", suites())
def test_named_suites(name):
    config = configure_comparison(name, rules=["ppo", "actor_critic"])
    assert config.name == name
    assert config.about
    for environment in config.environments:
        one, two = (config.training(rule, environment) for rule in config.rules)
        # The same steps for all rules, each in updates of its own size, none cut short.
        for training in (one, two):
            each = training.agent.steps_per_update
            assert config.steps <= training.updates * each < config.steps + each


@pytest.mark.parametrize("name", ["atari57", "procgen16"])
def test_presets_of_the_paper_do_not_handicap_hand_made_rules(name):
    config = configure_comparison(
        name, rules=[name for name, rule in REGISTRY.items() if not is_learned(rule)]
    )
    paper = config.training(RuleEntry("disco103"), config.environments[0]).agent
    assert paper.optimiser.weight_decay > 0
    assert paper.optimiser.warmup_steps > 0
    assert paper.optimiser.schedule == "cosine"
    for rule in config.rules:
        plain = config.training(rule, config.environments[0]).agent
        optimiser = plain.optimiser
        chosen = optimiser.weight_decay, optimiser.warmup_steps, optimiser.schedule
        assert chosen == (0, 0, "constant")
        assert (plain.network, plain.discount) == (paper.network, paper.discount)
        assert len(config.rates(rule)) == 3, "every rule is tuned"


def test_a_memory_where_one_is_needed():
    config = configure_comparison("minigrid", rules=["ppo"])
    agents = {e.label: config.training(config.rules[0], e).agent for e in config.environments}
    recurrent = {label for label, agent in agents.items() if agent.network.lstm}
    assert recurrent == {"minigrid:MemoryS8"}


def test_a_line_more(tmp_path):
    base, more = tmp_path / "base.toml", tmp_path / "more.toml"
    base.write_text(TINY)
    more.write_text(f'extends = "{base}"\nmore_rules = ["ppo:epochs=2"]\n')
    config = configure_comparison(more, seeds=3, more_rules="ppo")
    own = configure_comparison(base).rules
    assert config.rules == (*own, RuleEntry("ppo:epochs=2"), RuleEntry("ppo"))
    assert (config.name, config.seeds, config.steps) == ("more", 3, 96)
    assert config.training(config.rules[0], config.environments[0]).agent.network.hidden == (4,)
    with pytest.raises(UserError, match="'actor_critic' appears twice"):
        configure_comparison(base, more_rules=["actor_critic"])


def test_names_stand_for_entries_of_the_suite(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text("""
        learning_rates = [0.1, 0.2]
        rules = [
            "actor_critic",
            { rule = "ppo", label = "mine", learning_rates = [0.3], settings = { unroll = 5 } },
            { rule = "disco103", optional = true },
        ]
        environments = [{ env = "catch", label = "ours", random = 0.25, optimal = 0.5 }, "chain"]
    """)
    expected = RuleEntry("ppo", "mine", (0.3,), {"unroll": 5})
    for name in ("ppo", "mine"):
        config = configure_comparison(suite, rules=[name, "muesli"], environments=["catch"])
        assert config.rules == (expected, RuleEntry("muesli"))
        assert [(e.label, e.random) for e in config.environments] == [("ours", 0.25)]
    # A table is taken as it is; so are learning rates, unless they were the suite's.
    given = {"rule": "ppo", "learning_rates": [0.4]}
    config = configure_comparison(suite, rules=["mine", given], learning_rates=[0.5])
    assert [config.rates(rule) for rule in config.rules] == [(0.5,), (0.4,)]
    assert config.rules[0].settings == {"unroll": 5}
    # A rule that is asked for by name is not left out in silence.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
        patch.delenv("DISCORL_RULES", raising=False)
        assert len(configure_comparison(suite).rules) == 2
        with pytest.raises(UserError, match="rule 'disco103' is not on this machine"):
            configure_comparison(suite, rules=["disco103"])


def test_rules_on_the_command_line(tmp_path, capsys):
    """Settings that PPO refuses, so that nothing is trained."""
    suite, out = tmp_path / "suite.toml", tmp_path / "run"
    suite.write_text("""
        rules = ["muesli", { rule = "ppo", learning_rates = [0.1], settings = { unroll = 5 } }]
        environments = ["catch"]
        settings = { batch = 10, num_envs = 10 }
    """)
    options = ["--rules", "ppo", "--more-rules", "ppo:epochs=2", "--learning-rates", "0.2"]
    with pytest.raises(SystemExit):
        cli.main(["compare", "--suite", str(suite), *options, "--out", str(out), "--json"])
    assert len(json.loads(capsys.readouterr().out)["failures"]) == 2
    config = load(out).config
    assert [rule.label for rule in config.rules] == ["ppo", "ppo:epochs=2"]
    assert [config.rates(rule) for rule in config.rules] == [(0.2,), (0.2,)]
    assert [rule.settings for rule in config.rules] == [{"unroll": 5}, {}]


def test_a_file_beside_another(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "base.toml").write_text(TINY)
    (folder / "more.toml").write_text('extends = "base.toml"\nseeds = 7\n')
    config = configure_comparison(folder / "more.toml")
    assert (config.seeds, config.steps) == (7, 96)
    (folder / "base.toml").write_text('extends = "../suites/more.toml"')
    with pytest.raises(UserError, match="which in turn extends this file"):
        configure_comparison(folder / "more.toml")
    (folder / "base.toml").write_text("extends = 3")
    with pytest.raises(UserError, match="extends is 3; expected a suite's name"):
        configure_comparison(folder / "more.toml")


def test_an_optional_rule_is_left_out_where_it_is_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DISCORL_RULES", raising=False)
    entry = {"rule": "disco103", "optional": True}
    config = configure_comparison(rules=["ppo", entry], environments=["catch"], about="Two.")
    assert [rule.label for rule in config.rules] == ["ppo"]
    assert config.about == "Two. disco103 is left out: it has not been fetched."
    with pytest.raises(UserError, match="rule 'disco103' is not on this machine"):
        configure_comparison(rules=["ppo", "disco103"], environments=["catch"])
    with pytest.raises(UserError, match="no rules to compare"):
        configure_comparison(rules=[entry], environments=["catch"])


def test_an_optional_rule_stays_where_it_is_found(tmp_path):
    file = tmp_path / "mine.npz"
    file.touch()
    config = configure_comparison(
        rules=[{"rule": str(file), "optional": True}], environments=["catch"]
    )
    assert (len(config.rules), config.about) == (1, "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": []}, "no rules to compare"),
        ({"rules": ["pp0"]}, "did you mean 'ppo'"),
        ({"rules": ["ppo", "ppo"]}, "'ppo' appears twice"),
        ({"rules": [{"rule": "ppo", "lr": 1}]}, "no setting 'lr'"),
        ({"suite": "laptob"}, "did you mean 'laptop'"),
        ({"suite": "no.toml"}, "no.toml: there is no such file"),
        ({"stepps": 3}, "did you mean 'steps'"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"seeds": "5"}, "seeds is '5'; expected an integer"),
        ({"rules": [{"rule": "ppo", "seeds": 6}]}, "ppo: seeds is 6; expected at most .*, 5"),
        ({"rules": [{"rule": "ppo", "seeds": 0}]}, "seeds is 0; expected at least 1"),
        ({"seeds_at_once": -1}, "seeds_at_once is -1; expected at least 0"),
        ({"learning_rates": [0.0]}, "learning_rates is 0.0; expected a positive number"),
        ({"learning_rates": 0.1}, "learning_rates is 0.1; expected a list of numbers"),
        ({"settings": {"hidden": 6.4}}, "hidden is 6.4; expected integers of at least 1"),
        (
            {"settings": {"batch": "8"}},
            "settings of 'ppo' in 'catch': batch is '8'; expected an integer",
        ),
        ({"settings": 3}, "settings is 3; expected a table"),
        ({"settings": {"env": "grid"}}, "settings has 'env', .*: see environments"),
        ({"rules": [{"rule": "ppo", "settings": {"steps": 9}}]}, "settings has 'steps', .*: see"),
        ({"rules": [3]}, "3: expected a name, or a table with the setting 'rule'"),
        ({"more_rules": 3}, "3: expected a name, or a table with the setting 'rule'"),
        ({"sweep_seed": 4}, "apart from those compared, 0 to 4"),
        ({"tune": "rule"}, "expected one of suite, environment"),
        ({"settings": {"hiden": [3]}}, "no setting 'hiden'"),
        (
            {"environments": [{"env": "catch", "random": 0.0}]},
            "catch: optimal is None; expected a number",
        ),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(UserError, match=message):
        configure_comparison(**{"rules": ["ppo"], "environments": ["catch"]} | settings)


def test_scales_must_be_known(tmp_path):
    environments = ["probes:ConstantReward", "catch"]
    with pytest.raises(UserError, match="has no reference returns to normalise scores by"):
        discorl.compare(rules=["ppo"], environments=environments, out=tmp_path / "run")
    # A slip of the pen is no suite that is not installed, and does not wait until all is trained.
    scaled = {"env": "katch", "random": 0, "optimal": 1}
    for environments in (["katch"], ["catch", "katch"], ["catch", scaled]):
        with pytest.raises(UserError, match="no environment 'katch'"):
            discorl.compare(rules=["ppo"], environments=environments, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
