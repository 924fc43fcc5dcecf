"""Training in environments that are stepped on the host."""
