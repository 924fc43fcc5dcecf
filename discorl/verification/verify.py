"""Recomputes golden cases, so that a user can prove what their machine and versions compute.

A directory holds npz files of three kinds, told apart by the names of their arrays: calls of the
rule on given outputs (`call0/...`), updates of an agent (`step0/...`) and a meta-gradient
(`train0/...`). The rule is in `meta_network.npz` beside them, or else named by the caller.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import jax

from discorl import rules
from discorl.rules.files import weights
from discorl.runs import compilation
from discorl.runs.progress import doing
from discorl.types import Params, UserError
from discorl.verification.cases import Case, cast
from discorl.verification.checks import Errors, check_learner, check_meta_gradient, check_rule

RULE_FILE = "meta_network.npz"
DEFAULT_RULE = "disco103"

# By how the names of a case's arrays start, with the largest errors accepted, relative to an
# array's largest value; None: shown, not judged. One step of Adam turns the rounding noise of a
# nearly zero gradient into a full step, so in float32 only the rule itself can be judged.
CHECKS: dict[str, tuple[Callable[[Case, Params, Errors], None], dict[str, float | None]]] = {
    "call0/": (check_rule, {"float64": 1e-5, "float32": 1e-4}),
    "step0/": (check_learner, {"float64": 1e-5, "float32": None}),
    "train0/": (check_meta_gradient, {"float64": 1e-3, "float32": None}),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest error of one quantity in one file."""

    file: str
    dtype: str
    quantity: str
    error: float  # NaN if there is nothing to compare with
    tolerance: float | None  # None: not judged
    missing: tuple[str, ...] = ()  # expected arrays that the file does not hold

    @property
    def ok(self) -> bool:
        """Whether all arrays are there and the error is within the tolerance; NaN never is."""
        if self.missing:
            return False
        if self.tolerance is None:
            return not math.isnan(self.error)
        return self.error <= self.tolerance


def verify(directory: str | Path, rule: str | None = None) -> list[Check]:
    """Recomputes every golden case in a directory and those below it.

    Args:
        directory: where the cases are.
        rule: the rule of cases that have none beside them, a name or a file; disco103 by default.

    Returns:
        one check for each quantity, in float64 and then in float32.

    Raises:
        UserError: there are no cases, or one of them lacks inputs or is not what it should be.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such directory")
    files = sorted(p for p in directory.rglob("*.npz") if p.name != RULE_FILE)
    if not files:
        raise UserError(f"{directory}: holds no golden cases (npz files)")
    compilation.enable_cache()
    checks = []
    for path in files:
        beside = path.parent / RULE_FILE
        eta = weights.load(beside) if beside.is_file() else rules.load(rule or DEFAULT_RULE)[1]
        if not eta:
            raise UserError(f"{path}: needs a discovered rule, and '{rule}' is a hand-designed one")
        for dtype in ("float64", "float32"):
            with jax.enable_x64(dtype == "float64"):
                name = str(path.relative_to(directory))
                doing(f"{name} in {dtype}")
                checks += _check_file(path, name, eta, dtype)
    return checks


def _check_file(path: Path, name: str, eta: Params, dtype: str) -> list[Check]:
    case = Case(path, dtype)
    for prefix, (check, tolerances) in CHECKS.items():
        if case.has(prefix):
            errors = Errors()
            try:
                check(case, cast(eta, dtype), errors)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise UserError(f"{path}: not a complete case: {error!r}") from error
            return [
                Check(
                    file=name,
                    dtype=dtype,
                    quantity=quantity,
                    error=errors.largest.get(quantity, math.nan),
                    tolerance=tolerances[dtype],
                    missing=tuple(errors.missing.get(quantity, ())),
                )
                for quantity in errors.largest | errors.missing
            ]
    starts = ", ".join(CHECKS)
    raise UserError(f"{path}: not a golden case; its arrays start with none of {starts}")
