"""Floating-point operations of a program, counted in the jaxpr."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def flops(function: Callable, *arguments: Any) -> float:
    """FLOPs of the matrix products and convolutions of a function; everything else is ignored.

    XLA counts the body of any loop once. Here the body of a scan counts once per iteration; a loop
    of data-dependent length counts once. The function is only traced, so shapes and dtypes suffice
    as arguments.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: core.Jaxpr) -> float:
    return math.fsum(_count_equation(equation) for equation in jaxpr.eqns)


def _count_equation(equation: core.JaxprEqn) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        left = _shape(equation.invars[0])
        return (
            2.0
            * math.prod(_shape(equation.outvars[0]))
            * math.prod(left[axis] for axis in contracted)
        )
    if name == "conv_general_dilated":
        kernel = _shape(equation.invars[1])
        out_features = kernel[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) / out_features
    if name == "cond":
        return max(_count(branch.jaxpr) for branch in parameters["branches"])
    if name == "while":
        return _count(parameters["body_jaxpr"].jaxpr) + _count(parameters["cond_jaxpr"].jaxpr)
    times = parameters["length"] if name == "scan" else 1
    inner = [parameters[key] for key in _INNER if key in parameters]
    return times * math.fsum(_count(getattr(each, "jaxpr", each)) for each in inner)


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape
