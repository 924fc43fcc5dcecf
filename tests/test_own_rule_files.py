"""Rules of one's own in files, and what may be wrong with a rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_rule_samples import OWN

from discorl import rules
from discorl.cli import rules as rules_command
from discorl.rules import PPO, Disco, conformance
from discorl.rules.files import library
from discorl.runs import npz
from discorl.types import UserError

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
        ({}, {"kind": "my_rules:small"}, "kind 'my_rules:small', which is not a class of rules"),
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
    last = "file" if rules.is_learned(rules.REGISTRY[name]) else "action masks"
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
            {"targets": lambda s, e, x, t, o, p: {"value": t.reward}},
            "returned a dict; expected targets, the new state and metrics",
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
    eta = rules.weights.load(golden / "meta_network.npz")
    rule = Disco(sizes=rules.Sizes.of(eta), num_bins=21)
    rule.save(tmp_path / "rule.npz", eta)
    assert npz.read(tmp_path / "rule.npz").metadata == {"bins": 21, "without": "none"}
    assert rules.load(str(tmp_path / "rule.npz"))[0] == rule
