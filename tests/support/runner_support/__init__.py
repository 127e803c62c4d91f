"""Agents, executors and comparisons for the tests of the runners.

A real package on the path of pytest (``pythonpath`` in pyproject.toml), because spawned workers
have to import the agents' classes.
"""
