"""Experiments as they are declared, and the runs that they ask for."""
