"""Adapters for suites written in JAX; `discorl.envs.suites` lists them."""
