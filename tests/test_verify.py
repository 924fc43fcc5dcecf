"""Golden values: what agrees passes, what does not fails, at any size.

The golden files in `golden` come from the authors' published implementation (see its README). Cases
of other sizes come from `reference`, which is first held against those files itself.
"""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import reference

from discorl import cli
from discorl.types import UserError
from discorl.verification import verify

RULE_FILES = ("rule_small.npz", "rule_wide.npz")
LEARNER_FILE = "learner_steps.npz"
META_FILE = "meta_gradient.npz"
WEIGHTS = "meta_network.npz"


def arrays_of(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def below(arrays, prefix):
    """Nested dict of everything below a prefix."""
    tree = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            *folders, last = name.removeprefix(prefix).split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
    return tree


def relative_error(computed, expected):
    return np.max(np.abs(computed - expected)) / (np.max(np.abs(expected)) or 1.0)


def wrong(checks):
    return sorted({(check.dtype, check.quantity) for check in checks if not check.ok})


def write_case(folder, weights, file, name="case.npz"):
    np.savez(folder / WEIGHTS, **weights)
    np.savez(folder / name, **file)


# --- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULE_FILES)
def test_reference_agrees_with_golden_calls_of_the_rule(golden, name):
    file = arrays_of(golden / name)
    rule = reference.Rule(arrays_of(golden / WEIGHTS))
    compared = 0
    for call in range(3):
        out = rule.call(below(file, f"call{call}/in/"))
        for key, expected in file.items():
            if key.startswith(f"call{call}/out/"):
                computed = out[key.removeprefix(f"call{call}/out/")]
                assert relative_error(computed, expected) < 1e-10, key
                compared += 1
    assert compared == 3 * 27


def test_reference_agrees_with_golden_updates(golden):
    file = arrays_of(golden / LEARNER_FILE)
    params = reference.flatten(below(file, "init/params/"))
    learner = reference.Learner(arrays_of(golden / WEIGHTS), params)
    compared = 0
    for step in range(4):
        out = learner.update(below(file, f"step{step}/in/"))
        for key, expected in file.items():
            if key.startswith(f"step{step}/out/"):
                computed = out[key.removeprefix(f"step{step}/out/")]
                assert relative_error(computed, expected) < 1e-10, key
                compared += 1
    assert compared == 4 * (8 + 3 + len(params))
    for name, expected in reference.flatten(below(file, "final/target_params/")).items():
        assert relative_error(learner.target_params[name], expected) < 1e-10, name
    assert relative_error(learner.rule.hidden, file["final/meta_rnn/hidden"]) < 1e-10


# --- what agrees passes ---------------------------------------------------------------------------


def test_golden_cases_agree(golden):
    checks = verify(golden)
    assert wrong(checks) == []
    # Far closer than what is accepted, so that a slow drift shows here first.
    in_float64 = [check for check in checks if check.dtype == "float64"]
    assert max(check.error for check in in_float64) < 1e-9
    quantities = {(check.file, check.quantity) for check in in_float64}
    assert ("rule_wide.npz", "grad") in quantities
    assert (LEARNER_FILE, "params") in quantities
    assert (LEARNER_FILE, "final target_params") in quantities
    gradients = {q for file, q in quantities if file == META_FILE and q.startswith("gradient of")}
    assert gradients == {f"gradient of {name}" for name in arrays_of(golden / WEIGHTS)}
    in_float32 = [check for check in checks if check.dtype == "float32"]
    assert {(check.file, check.quantity) for check in in_float32} == quantities
    assert all(check.tolerance for check in in_float32 if check.file in RULE_FILES)


def test_golden_cases_agree_with_the_compiler_settings_of_users(rule_case, users_environment):
    main = "from discorl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "verify", str(rule_case), "--json"],
        env=users_environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["ok"]
    in_float64 = [check["error"] for check in data["checks"] if check["dtype"] == "float64"]
    assert len(in_float64) == 18
    assert max(in_float64) < 1e-9


def test_golden_cases_of_the_published_rule_agree(golden103, disco103):
    checks = verify(golden103, str(disco103))
    assert wrong(checks) == []
    assert max(check.error for check in checks if check.dtype == "float64") < 1e-8
    assert {check.file for check in checks} == {LEARNER_FILE, META_FILE}


# Every case differs in several ways from the golden ones, and from the other cases.
SIZES = {
    "two_actions_one_step": (
        reference.Sizes(predictions=5, y_net=(4, 3), z_net=(4, 3), meta_y_net=(), meta_z_net=()),
        {"steps": 1, "batch": 3, "num_actions": 2, "num_bins": 3},
    ),
    "seven_actions_one_trajectory_deeper_nets": (
        reference.Sizes(
            predictions=9,
            trajectory_lstm=7,
            meta_lstm=3,
            meta_input=4,
            y_net=(8, 5),
            z_net=(8, 5),
            policy_net=(6, 5, 3),
            pi_hat_block=4,
            meta_y_net=(6, 4),
            meta_z_net=(6, 4),
            meta_policy_net=(4,),
        ),
        {"steps": 5, "batch": 1, "num_actions": 7, "num_bins": 41},
    ),
}


@pytest.mark.parametrize("case", SIZES)
def test_calls_of_rules_of_other_sizes_agree_with_the_reference(case, tmp_path):
    sizes, shape = SIZES[case]
    rng = np.random.default_rng(3)
    weights = reference.random_rule(rng, sizes)
    write_case(tmp_path, weights, reference.rule_case(rng, weights, **shape))
    checks = verify(tmp_path)
    assert [check for check in checks if not check.ok] == []
    assert max(check.error for check in checks if check.dtype == "float64") < 1e-9


AGENTS = {
    "one_layer_each": {"torso": (6,), "lstm": 5, "head": ()},
    "three_layer_torso": {"torso": (7, 6, 5), "lstm": 4, "head": (6, 3)},
}


@pytest.mark.long
@pytest.mark.parametrize(("agent", "case"), list(zip(AGENTS, SIZES, strict=True)))
def test_updates_of_agents_of_other_sizes_agree_with_the_reference(agent, case, tmp_path):
    sizes, shape = SIZES[case]
    num_bins = shape["num_bins"]
    rng = np.random.default_rng(4)
    weights = reference.random_rule(rng, sizes)
    params = reference.random_params(
        rng,
        inputs=6,
        num_actions=shape["num_actions"],
        predictions=sizes.predictions,
        num_bins=num_bins,
        **AGENTS[agent],
    )
    file = reference.learner_case(
        rng,
        weights,
        params,
        shape=(2, 3),
        steps=shape["steps"],
        batch=shape["batch"],
        num_actions=shape["num_actions"],
        learning_rate=3e-3,
    )
    write_case(tmp_path, weights, file)
    checks = verify(tmp_path)
    assert [check for check in checks if not check.ok] == []
    assert max(check.error for check in checks if check.dtype == "float64") < 1e-8


# --- what does not agree fails --------------------------------------------------------------------


@pytest.fixture
def rule_case(golden, tmp_path):
    """A folder with one golden file, and a function that alters one number in a file of it."""
    shutil.copy(golden / RULE_FILES[0], tmp_path)
    shutil.copy(golden / WEIGHTS, tmp_path)
    return tmp_path


def alter(path, name, amount=1e-3):
    """Adds a share of the array's largest value to one of its numbers."""
    arrays = arrays_of(path)
    array = arrays[name].astype(np.float64)
    array.flat[array.size // 2] += amount * (np.max(np.abs(array)) or 1.0)
    arrays[name] = array.astype(arrays[name].dtype)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    "quantity",
    [
        "pi",
        "z",
        "meta_input_emb",
        "adv",
        "normalized_qv_adv",
        "value_loss_per_step",
        "meta_rnn/cell",
        "td_ema/moment2",
        "grad/q",
        "grad/aux_pi",
    ],
)
def test_an_altered_result_of_the_rule_is_found(rule_case, quantity):
    alter(rule_case / RULE_FILES[0], f"call2/out/{quantity}")
    name = quantity.partition("/")[0]
    assert wrong(verify(rule_case)) == [("float32", name), ("float64", name)]


@pytest.mark.parametrize(
    "given", ["in/rewards", "in/agent/z", "in/target/q", "in/behaviour_logits"]
)
def test_an_altered_input_of_the_rule_is_found(rule_case, given):
    alter(rule_case / RULE_FILES[0], f"call0/{given}", 0.1)
    assert ("float64", "pi") in wrong(verify(rule_case))


@pytest.mark.parametrize(
    "weight",
    ["lstm/linear/b", "lstm/sequential/conv1_d/w", "lstm/~/meta_lstm/~unroll/mlp_2/~/linear_0/w"],
)
def test_an_altered_weight_is_found(rule_case, weight):
    alter(rule_case / WEIGHTS, weight, 0.1)
    assert wrong(verify(rule_case))


@pytest.fixture
def learner_case(golden, tmp_path):
    shutil.copy(golden / LEARNER_FILE, tmp_path)
    shutil.copy(golden / WEIGHTS, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "altered",
    [
        {
            "step1/out/total_loss": "total_loss",
            "step2/out/target/y": "target",
            "final/target_params/head/y/w": "final target_params",
        },
        {
            "step3/out/params/torso/0/w": "params",
            "step0/out/global_update_norm": "global_update_norm",
            "final/meta_rnn/hidden": "final meta_rnn",
        },
    ],
)
def test_altered_results_of_updates_are_found(learner_case, altered):
    for array in altered:
        alter(learner_case / LEARNER_FILE, array)
    # In float32 updates are shown but not judged.
    found = wrong(verify(learner_case))
    assert found == sorted(("float64", quantity) for quantity in altered.values())


def drop(path, *names, **metadata):
    arrays = arrays_of(path)
    for name in names:
        del arrays[name]
    if metadata:
        arrays["metadata"] = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("dropped", "quantity"),
    [
        ("call0/out/y", "y"),
        ("call2/out/td_ema/moment2", "td_ema"),
        ("call1/out/grad/aux_pi", "grad"),
    ],
)
def test_a_missing_result_of_the_rule_is_found(rule_case, dropped, quantity):
    drop(rule_case / RULE_FILES[0], dropped)
    found = [check for check in verify(rule_case) if not check.ok]
    assert [(check.dtype, check.quantity) for check in found] == [
        ("float64", quantity),
        ("float32", quantity),
    ]
    assert all(check.missing == (dropped,) for check in found)


def test_missing_results_of_updates_are_found(learner_case):
    dropped = {
        "step1/out/entropy": "entropy",
        "step3/out/params/head/y/b": "params",
        "final/target_params/torso/0/w": "final target_params",
        "final/meta_rnn/cell": "final meta_rnn",
    }
    drop(learner_case / LEARNER_FILE, *dropped)
    found = {check.quantity: check.missing for check in verify(learner_case) if not check.ok}
    assert found == {quantity: (name,) for name, quantity in dropped.items()}


def test_missing_and_altered_parts_of_a_meta_gradient_are_found(golden, tmp_path):
    for name in (META_FILE, WEIGHTS):
        shutil.copy(golden / name, tmp_path)
    gradient = "meta_grads/lstm/linear_2/b"
    drop(tmp_path / META_FILE, gradient, "meta_log/reg_loss", "final/value_params/torso/1/w")
    alter(tmp_path / META_FILE, "meta_grads/lstm/lstm/linear/w", 1e-2)
    alter(tmp_path / META_FILE, "meta_log/adv", 1e-2)
    found = [check for check in verify(tmp_path) if not check.ok and check.dtype == "float64"]
    assert {check.quantity: check.missing for check in found} == {
        "gradient of lstm/linear_2/b": (gradient,),
        "gradient of lstm/lstm/linear/w": (),
        "reg_loss": ("meta_log/reg_loss",),
        "value_params": ("final/value_params/torso/1/w",),
        "adv": (),
    }


def test_arrays_that_a_file_says_it_leaves_out_are_not_missed(rule_case):
    path = rule_case / RULE_FILES[0]
    drop(path, "call0/out/y", "call0/out/z", left_out=["call0/out/y"])
    found = [check for check in verify(rule_case) if not check.ok]
    assert {check.missing for check in found} == {("call0/out/z",)}


def test_a_missing_call_in_between_is_found(rule_case):
    path = rule_case / RULE_FILES[0]
    drop(path, *(name for name in arrays_of(path) if name.startswith("call1/")))
    with pytest.raises(UserError, match=r"holds call2/ but no array under 'call1/'"):
        verify(rule_case)


def test_nan_fails(rule_case):
    alter(rule_case / RULE_FILES[0], "call1/out/y", np.nan)
    assert ("float64", "y") in wrong(verify(rule_case))


def test_nan_that_is_computed_fails(rule_case):
    alter(rule_case / RULE_FILES[0], "call1/in/rewards", np.nan)
    assert ("float64", "pi") in wrong(verify(rule_case))


def run_cli(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        cli.main([str(a) for a in arguments])
    return exit.value.code, capsys.readouterr()


def test_command_says_what_agrees_and_what_does_not(rule_case, capsys):
    status, output = run_cli(capsys, "verify", rule_case, "--json")
    data = json.loads(output.out)
    assert (status, data["ok"]) == (0, True)
    assert len(data["checks"]) == 2 * 18

    alter(rule_case / RULE_FILES[0], "call0/out/adv", 0.5)
    status, output = run_cli(capsys, "verify", rule_case, "--json")
    data = json.loads(output.out)
    assert (status, data["ok"]) == (1, False)
    assert {check["quantity"] for check in data["checks"] if not check["ok"]} == {"adv"}

    status, output = run_cli(capsys, "verify", rule_case)
    assert status == 1
    assert "WRONG" in output.out
    assert "34 of 36 quantities agree" in output.out

    drop(rule_case / RULE_FILES[0], "call0/out/y", "call1/out/y")
    status, output = run_cli(capsys, "verify", rule_case)
    assert status == 1
    assert "MISSING call0/out/y and 1 more" in output.out
    assert "32 of 36 quantities agree" in output.out


# --- what cannot be compared is a user's mistake --------------------------------------------------


def test_missing_or_empty_directory(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        verify(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no golden cases"):
        verify(tmp_path)


def test_files_that_are_no_cases(golden, tmp_path):
    shutil.copy(golden / WEIGHTS, tmp_path)
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(UserError, match="not a golden case"):
        verify(tmp_path)
    (tmp_path / "other.npz").write_bytes(b"not a zip file")
    with pytest.raises(UserError, match="is not an npz file"):
        verify(tmp_path)


def test_an_incomplete_case(rule_case):
    path = rule_case / RULE_FILES[0]
    arrays = arrays_of(path)
    del arrays["call0/in/rewards"]
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=r"not a complete case.*rewards"):
        verify(rule_case)


def test_a_result_of_another_shape(rule_case):
    path = rule_case / RULE_FILES[0]
    arrays = arrays_of(path)
    arrays["call0/out/adv"] = arrays["call0/out/adv"][:-1]
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=r"adv: the file holds shape \(5, 2\)"):
        verify(rule_case)


def test_a_hand_made_rule_cannot_be_verified(rule_case):
    (rule_case / WEIGHTS).unlink()
    with pytest.raises(UserError, match="needs a discovered rule"):
        verify(rule_case, "ppo")
