"""Faults that tests cause, in workers and in main processes of their own."""
