"""Mutation tests: change the source in one place at a time and count the changes that no test notices."""
