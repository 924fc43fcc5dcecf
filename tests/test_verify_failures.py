"""What `discorl verify` does not agree with fails, and says so."""

import json
import shutil

import numpy as np
import pytest
from golden_files import (
    LEARNER_FILE,
    META_FILE,
    RULE_FILES,
    WEIGHTS,
    arrays_of,
    wrong,
)

from discorl import cli
from discorl.types import UserError
from discorl.verification import verify


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
