"""Rules of one's own: by name, as objects, from other packages, in files, and what may be wrong."""

import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl import envs, rules
from discorl.cli import envs as envs_command
from discorl.cli import rules as rules_command
from discorl.discovery.start import keys_of
from discorl.rules import PPO, Disco, conformance
from discorl.rules.files import library
from discorl.runs import npz
from discorl.runs.metrics import TOTAL_LOSS
from discorl.types import UserError

OWN = """
    from dataclasses import dataclass

    import jax
    import jax.numpy as jnp

    from discorl.rules import PolicyGradient

    @dataclass(frozen=True, kw_only=True)
    class Mine(PolicyGradient):
        "A policy gradient with a learned weight."

        recipe = PolicyGradient.recipe | {"learning_rate": 0.25}
        widths: tuple[int, ...] = (2,)
        scale: float = 1.0

        def init_params(self, key):
            net = [jax.random.normal(key, (width,)) for width in self.widths]
            return {"net": net, "weight": jnp.ones(())}

        def targets(self, eta, state, trajectory, online, target):
            targets, state, metrics = super().targets((), state, trajectory, online, target)
            factor = self.scale * eta["weight"] + sum(x.sum() for x in eta["net"])
            return targets | {"advantage": factor * targets["advantage"]}, state, metrics

    def small(scale: float = 0.5):
        return Mine(scale=scale)

    def wrong():
        return {"scale": 1}

    def unlicensed():
        raise OSError("no licence")
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into a folder, which is then the current one, and where modules are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    loaded = set(sys.modules)

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))

    yield write
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(name):
    with pytest.raises(UserError) as error:
        rules.load(name)
    return str(error.value)


def test_a_rule_by_its_class_or_by_a_function(write):
    write("my_rules.py", OWN)
    rule, eta = rules.load("my_rules:Mine,scale=3", discount=0.9)
    assert (type(rule).__name__, rule.scale, rule.discount) == ("Mine", 3.0, 0.9)
    assert (rule.name, rules.text_of(rule)) == ("policy_gradient", "my_rules:Mine,scale=3.0")
    assert float(eta["weight"]) == 1
    other, again = rules.load("my_rules:small,scale=2")
    assert other == type(rule)(scale=2)
    np.testing.assert_array_equal(eta["net"][0], again["net"][0])
    assert rules.load("my_rules:Mine,discount=0.5", discount=0.9)[0].discount == 0.5
    assert rules.find("my_rules:Mine,scale=3") is None
    for name in ("my_rules:Mine", "my_rules:small", rule, (rule, eta)):
        assert rules.recipe(name)["learning_rate"] == 0.25


def test_a_rule_as_an_object():
    rule, eta = rules.load(PPO(epochs=2), discount=0.5)
    assert (rule, eta) == (PPO(epochs=2, discount=0.5), ())
    assert rules.load((rule, "given")) == (rule, "given")
    assert rules.text_of(PPO(epochs=2, value_clip=0.2)) == "ppo:epochs=2,value_clip=0.2"
    assert rules.text_of(PPO()) == "ppo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rules:Min", "my_rules has no function or class 'Min'; did you mean 'Mine'?"),
        ("my_rules:wrong", "my_rules:wrong returned a builtins.dict; expected a discorl.Rule"),
        ("my_rules:Mine,scales=3", "has no parameter 'scales', did you mean 'scale'?"),
        ("my_rules:Mine,discount=2", "discount is 2.0; expected from 0 to 1"),
        ("my_rules:unlicensed", "my_rules:unlicensed raised OSError: no licence"),
        ("my.rules:Mine", "no rule 'my.rules:Mine': there is no module 'my.rules'"),
        ("muesly", "no rule 'muesly'; did you mean 'muesli'? known: "),
        ("muesly", "or package.module:Class for a rule of your own"),
        ("ppo:epochs", "ppo takes parameters only, got 'epochs'"),
    ],
)
def test_mistakes_are_told(write, name, message):
    write("my_rules.py", OWN)
    assert message in refusal(name)


def test_without_a_name_a_rule_is_called_like_its_class():
    class Nameless(rules.Rule):
        outputs = targets = loss = None

    assert Nameless.name == "Nameless"


# --- training -------------------------------------------------------------------------------------

FEW = {
    "env": "catch:rows=3,columns=2",
    "preset": "small",
    "hidden": (8,),
    "updates": 4,
    "checkpoint_every": 2,
}


def test_training_with_a_rule_by_name_is_remembered(write, tmp_path):
    write("my_rules.py", OWN)
    whole = discorl.train(rule="my_rules:Mine,scale=3", out=tmp_path / "run", **FEW)
    assert whole.config.rule == "my_rules:Mine,scale=3"
    assert whole.config.agent.optimiser.learning_rate == 0.25
    kept, eta = rules.load(str(tmp_path / "run" / "rule.npz"))
    assert kept.scale == 3
    np.testing.assert_array_equal(eta["net"][0], rules.load("my_rules:Mine")[1]["net"][0])
    again = discorl.train(resume=tmp_path / "run")
    assert again.finished
    np.testing.assert_array_equal(again.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])


def test_training_with_an_object_needs_it_again(write, tmp_path):
    write("my_rules.py", OWN)
    rule, eta = rules.load("my_rules:Mine,scale=3")
    other = jax.tree.map(lambda x: x + 1, eta)
    whole = discorl.train(rule=(rule, other), **FEW)
    run = tmp_path / "run"
    half = discorl.train(rule=(rule, other), out=run, **FEW)
    assert half.config.rule == "my_rules:Mine,scale=3.0"
    np.testing.assert_array_equal(half.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    plain = discorl.train(rule=rule, **FEW)
    assert not np.array_equal(plain.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    for checkpoint in sorted((run / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    with pytest.raises(UserError, match=r"with a rule of its own: give it again, as `rule=...`"):
        discorl.train(resume=run)
    with pytest.raises(UserError, match=r"with a rule of its own: give it again, as `rule=...`"):
        discorl.evaluate(run)
    resumed = discorl.train(resume=run, rule=rule)  # its parameters are in the run
    assert resumed.finished
    np.testing.assert_array_equal(resumed.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    assert discorl.evaluate(run, rule=rule, episodes=2).update == 4


def test_an_object_brings_its_discount_and_recipe():
    config = discorl.configure(PPO(discount=0.5, epochs=2), env="catch")
    assert (config.rule, config.agent.discount, config.agent.num_envs) == ("ppo:epochs=2", 0.5, 32)
    given = discorl.configure(PPO(discount=0.5), env="catch", discount=0.9)
    assert given.agent.discount == 0.9


# --- other packages -------------------------------------------------------------------------------


def offer(write, package, group, **entries):
    """Installs a package, as far as entry points are concerned."""
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    folder = f"{package}-1.0.dist-info"
    write(f"{folder}/METADATA", f"Metadata-Version: 2.4\nName: {package}\nVersion: 1.0\n")
    write(f"{folder}/entry_points.txt", f"[{group}]\n{lines}\n")


def test_rules_of_other_packages(write):
    write("my_rules.py", OWN)
    write("broken_rules.py", "raise RuntimeError('no luck')")
    offer(write, "theirs", "discorl.rules", their_rule="my_rules:Mine", ppo="my_rules:Mine")
    offer(write, "wreck", "discorl.rules", wrecked="broken_rules:Mine")
    rule, _ = rules.load("their_rule:scale=2")
    assert rule.scale == 2
    assert rules.find("their_rule") is None
    assert isinstance(rules.load("ppo")[0], PPO)  # discorl's own come first
    message = refusal("wrecked")
    assert message.startswith("'wrecked' of the package wreck cannot be loaded from broken_rules:")
    assert message.endswith("it raised RuntimeError: no luck")
    assert "their_rule" in refusal("their_rul")
    listed = rules_command.list_rules()
    rows = {(row["name"], row["kind"]): row for row in listed.data["rules"]}
    assert rows["their_rule", "plugin"]["state"] == "installed"
    assert "A policy gradient with a learned weight." in rows["their_rule", "plugin"]["description"]
    assert rows["ppo", "plugin"]["state"] == "name taken"
    assert rows["wrecked", "plugin"]["state"] == "broken"
    assert "no luck" in listed.text


SUITE = """
    "Boards of theirs."
    from discorl.envs import Catch

    def names():
        return ["narrow", "wide"]

    def make(item: str, *, rows: int = 4):
        return Catch(rows=rows, columns=2 if item == "narrow" else 6)
"""


def test_suites_of_other_packages(write):
    write("my_suite.py", SUITE)
    write("no_suite.py", "def names(): ...")
    offer(write, "theirs", "discorl.envs", boards="my_suite", catch="my_suite", half="no_suite")
    assert envs.make("boards:wide,rows=3") == envs.Catch(rows=3, columns=6)
    assert envs.make("catch") == envs.Catch()  # discorl's own come first
    for name, message in (
        ("boards:tall", "boards has no item 'tall'; for example boards:narrow"),
        ("boards", "boards needs an item"),
        ("boards:wide,columns=3", "has no parameter 'columns'"),
        ("half:wide", "'half' of the package theirs is no suite of environments: no_suite has no "),
        ("bords:wide", "did you mean 'boards'?"),
    ):
        with pytest.raises(UserError) as error:
            envs.make(name)
        assert message in str(error.value)
    listed = envs_command.show()
    states = {row["name"]: row["state"] for row in listed.data["plugins"]}
    assert states == {"boards": "installed", "catch": "name taken", "half": "broken"}
    assert "expected names() and make()" in listed.text
    assert envs_command.show("boards").data["items"] == ["narrow", "wide"]


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def stored(write, tmp_path):
    """A rule of one's own, its parameters, and a file of both."""
    write("my_rules.py", OWN)
    rule, eta = rules.load("my_rules:Mine,scale=3")
    rule = type(rule)(scale=3.0, widths=(2, 4))
    eta = rule.init_params(jax.random.key(1))
    rule.save(tmp_path / "mine.npz", eta, {"seed": 7})
    return rule, eta, tmp_path / "mine.npz"


def test_a_file_gives_back_rule_and_parameters(stored, tmp_path):
    rule, eta, path = stored
    archive = npz.read(path)
    assert list(archive.arrays) == ["net/0", "net/1", "weight"]
    assert archive.metadata["kind"] == "my_rules:Mine"
    assert archive.metadata["seed"] == 7
    loaded, again = rules.load(str(path), discount=0.9)
    assert loaded == type(rule)(scale=3.0, widths=(2, 4), discount=0.9)
    assert jax.tree.structure(again) == jax.tree.structure(eta)
    for one, two in zip(jax.tree.leaves(eta), jax.tree.leaves(again), strict=True):
        assert np.asarray(one).tobytes() == two.tobytes()
    rule.save(tmp_path / "copy.npz", again, {"seed": 7})
    assert (tmp_path / "copy.npz").read_bytes() == path.read_bytes()
    assert rules.load(f"{path}:scale=5")[0].scale == 5
    assert rules.load("my_rules:Mine", file=path)[0] == rule  # by its class
    assert rules.recipe(str(path))["learning_rate"] == 0.25
    with jax.enable_x64(True):
        assert rules.load(str(path))[1]["weight"].dtype == np.float32


def rewritten(path, arrays=(), **metadata):
    archive = npz.read(path)
    npz.write(path, archive.arrays | dict(arrays), archive.metadata | metadata)
    return str(path)


@pytest.mark.parametrize(
    ("arrays", "metadata", "message"),
    [
        ({"weight": np.ones(2, np.float32)}, {}, r"array 'weight' has shape \[2\]; expected \[\]"),
        ({"weight": np.ones(())}, {}, "array 'weight' is float64; expected float32"),
        ({"weight": np.float32(np.nan)}, {}, "array 'weight' holds 1 NaN or infinite"),
        ({"bias": np.ones(2, np.float32)}, {}, "unexpected 'bias' .expected 3 arrays"),
        ({}, {"settings": {"widths": [2, 4, 8]}}, "missing 'net/2'"),
        ({}, {"settings": {"color": 1}}, "its settings are {'color': 1}; expected some of"),
        ({}, {"kind": "nowhere:Mine"}, "kind 'nowhere:Mine', and there is no such module"),
        ({}, {"kind": "my_rules:small"}, "kind 'my_rules:small', which is no class of rules"),
        ({}, {"kind": 3}, "its kind is 3; expected the name of a rule"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(stored, arrays, metadata, message):
    path = rewritten(stored[2], arrays, **metadata)
    with pytest.raises(UserError, match=f"mine.npz: .*{message}"):
        rules.load(path)


def test_what_cannot_be_kept_in_a_file_is_refused(stored, tmp_path):
    rule, eta, _ = stored

    class Inner(type(rule)):
        pass

    with pytest.raises(UserError, match="Inner cannot be found by name"):
        Inner(widths=(2, 4)).save(tmp_path / "x.npz", eta)
    with pytest.raises(UserError, match=r"array 'net/0' has shape \[2\]; expected \[3\]"):
        type(rule)(widths=(3, 4)).save(tmp_path / "x.npz", eta)
    with pytest.raises(UserError, match=r"scale is <object.*which a file cannot keep"):
        type(rule)(scale=object(), widths=(2, 4)).save(tmp_path / "x.npz", eta)
    assert not (tmp_path / "x.npz").exists()


def test_commands_know_files_of_any_kind(stored, tmp_path):
    rule, _, path = stored
    rules_command.import_file(path, "mine")
    assert library.find("mine").read_bytes() == path.read_bytes()
    assert rules.load("mine")[0] == rule
    shown = rules_command.show("mine").data
    assert shown["sizes"]["arrays"] == {"net/0": [2], "net/1": [4], "weight": []}
    assert shown["sizes"]["parameters"] == 7
    assert shown["metadata"]["settings"]["scale"] == 3
    rules_command.export("mine", tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match="nothing would say that it is of the kind"):
        rules_command.export("mine", tmp_path / "bare.npz", bare=True)
    rewritten(path, {"weight": np.float32(np.inf)})
    with pytest.raises(UserError, match="array 'weight' holds 1 NaN or infinite"):
        rules_command.import_file(path, "other")


# --- conformance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in rules.REGISTRY if name != "disco"])
def test_rules_of_discorl_keep_the_contract(name):
    findings = conformance.check(*rules.load(name))
    assert [f for f in findings if not f.ok] == []
    last = "file" if rules.is_learned(rules.REGISTRY[name]) else "gradient"
    assert findings[-1].check == last


def test_learned_rules_are_asked_for_more(stored):
    rule, eta, _ = stored
    found = {f.check: f for f in conformance.check(rule, eta)}
    assert all(finding.ok for finding in found.values())
    assert found["meta-gradient"].detail == "finite; reaches 3 of 3 arrays"
    assert found["file"].detail == "3 arrays, written and read back"
    result = rules_command.check("my_rules:Mine")
    assert result.ok
    assert "my_rules:Mine keeps the contract" in result.text


def broken(**methods):
    return type("Broken", (PPO,), methods)()


@pytest.mark.parametrize(
    ("check", "methods", "message"),
    [
        ("declaration", {"policy": lambda s, o: o["value"]}, "expected logits [7, 4, 3]"),
        ("declaration", {"outputs": lambda s, n: {"logits": n}}, "expected an OutputSpec"),
        ("declaration", {"outputs": lambda s, n: 1 / 0}, "it raised ZeroDivisionError"),
        ("parameters", {"init_params": lambda s, k: jnp.int32(1)}, "eta is int32; expected floats"),
        ("state", {"init_state": lambda s, n: jnp.log(-1.0 * n)}, "state holds NaN or infinity"),
        ("state", {"init_state": lambda s, n: list(range(n))}, "it raised "),
        ("state", {"step_size": lambda s, e, x: jnp.ones(2)}, "step_size is [1. 1.]; expected"),
        ("summaries", {"summarise": lambda s, e, n, x: x - x.mean(0)}, "depends on other rows"),
        ("summaries", {"summarise": lambda s, e, n, x: x.mean(0)}, "expected 28 rows"),
        (
            "targets",
            {"targets": lambda s, e, x, t, o, p: ({"value": t.reward[0]}, x, {})},
            "targets['value'] is [4] float32; expected [T, B, ...]",
        ),
        (
            "targets",
            {"targets": lambda s, e, x, t, o, p: ({"value": t.reward}, 1.0, {})},
            "the new state has the structure",
        ),
        (
            "targets",
            {"targets": lambda s, e, x, t, o, p: ({"value": t.reward / 0}, x, {})},
            "targets['value'] holds NaN or infinity",
        ),
        (
            "targets",
            {"targets": lambda s, e, x, t, o, p: ({"value": t.reward}, x, {"r": t.reward})},
            "metric 'r' is [6, 4] float32; expected a number",
        ),
        ("loss", {"loss": lambda s, o, g, t: {}}, "expected a dict of named terms"),
        ("loss", {"loss": lambda s, o, g, t: {"v": o["value"]}}, "v is [7, 4] float32; expected"),
        ("gradient", {"loss": lambda s, o, g, t: {"v": o["value"][1:]}}, "none reaches 'logits'"),
        ("gradient", {"loss": lambda s, o, g, t: {"v": g["value"]}}, "it is zero everywhere"),
    ],
)
def test_what_breaks_the_contract_is_named(check, methods, message):
    findings = conformance.check(broken(**methods))
    assert all(finding.ok for finding in findings[:-1])
    assert findings[-1].check == check
    assert not findings[-1].ok
    assert message in findings[-1].detail


def test_parameters_without_an_effect_are_told():
    rule = broken(init_params=lambda self, key: jnp.ones(2))
    finding = conformance.check(rule)[-1]
    assert (finding.check, finding.ok) == ("meta-gradient", False)
    assert "no update depends on eta" in finding.detail


def test_disco_keeps_its_published_file(tmp_path, golden):
    eta = rules.weights.load(golden / "meta_network.npz").eta
    rule = Disco(sizes=rules.Sizes.of(eta), num_bins=21)
    rule.save(tmp_path / "rule.npz", eta)
    assert npz.read(tmp_path / "rule.npz").metadata == {"bins": 21, "without": "none"}
    assert rules.load(str(tmp_path / "rule.npz"))[0] == rule


# --- discovery ------------------------------------------------------------------------------------

TINY = {
    "envs": ("catch:rows=3,columns=2",),
    "evaluate_on": ("catch:rows=3,columns=2",),
    "agents": 2,
    "meta_steps": 4,
    "checkpoint_every": 2,
    "evaluate_every": 2,
    "evaluate_updates": 3,
    "window": 2,
    "hidden": (4,),
    "value_hidden": (4,),
    "num_envs": 4,
    "batch": 4,
    "unroll": 3,
    "validation_envs": 2,
    "validation_unroll": 3,
}


def test_discovery_over_a_rule_of_ones_own(write, tmp_path):
    write("my_rules.py", OWN)
    whole = discorl.discover(rule="my_rules:Mine,scale=3", **TINY)
    assert whole.rule.scale == 3
    start = type(whole.rule)().init_params(keys_of(whole.config).rule)
    moved = jax.tree.map(lambda x, y: bool(np.any(x != y)), whole.eta, start)
    assert all(jax.tree.leaves(moved))
    run = tmp_path / "run"
    discorl.discover(rule="my_rules:Mine,scale=3", out=run, **TINY)
    kept, eta = rules.load(str(run / "rule.npz"))
    assert kept.scale == 3
    np.testing.assert_array_equal(eta["weight"], whole.eta["weight"])
    for checkpoint in sorted((run / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    resumed = discorl.discover(resume=run)
    np.testing.assert_array_equal(resumed.eta["weight"], whole.eta["weight"])
    further = discorl.discover(start=str(run / "rule.npz"), **TINY | {"meta_steps": 1})
    assert further.rule == kept
    given = discorl.discover(rule=(kept, eta), **TINY | {"meta_steps": 1})
    np.testing.assert_array_equal(given.eta["weight"], further.eta["weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "ppo"}, "rule is 'ppo', a rule without parameters to discover; expected"),
        ({"start": "ppo"}, "start is 'ppo', a rule without parameters to discover; expected"),
        ({"rule": "lean", "start": "muesli"}, "start is 'muesli', which is for the rule 'disco'"),
        ({"rule": "lean", "without": "q"}, "without is 'q', which is for the rule 'disco'"),
        ({"rule": "leen"}, "no rule 'leen'; did you mean 'lean'?"),
    ],
)
def test_rules_that_cannot_be_discovered_are_refused(settings, message):
    with pytest.raises(UserError) as error:
        discorl.discover(**TINY | settings)
    assert message in str(error.value)
