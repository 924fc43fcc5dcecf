"""Adapters for suites that are written in JAX; `discorl.envs.suites` lists them."""
