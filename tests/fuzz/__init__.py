"""Damaged and hostile files for every reader of the project."""
