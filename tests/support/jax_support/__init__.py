"""Agents, models and reports for the tests of the JAX runner.

Needs JAX and Flax, except for this module. Importing any module but ``runs_jax_at_import`` does
not initialise JAX, because spawned workers import them.
"""
