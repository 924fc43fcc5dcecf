"""Golden values: what agrees passes, what does not fails, at any size.

The golden files in `golden` come from the authors' published implementation (see its README). Cases
of other sizes come from `reference`, which is first held against those files itself.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import reference
from golden_files import (
    LEARNER_FILE,
    META_FILE,
    RULE_FILES,
    WEIGHTS,
    arrays_of,
    below,
    relative_error,
    write_case,
    wrong,
)

from discorl.verification import verify

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
