"""Training with environments in JAX: everything is one compiled program."""
