"""A module for each family of operators."""
