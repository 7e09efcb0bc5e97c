"""A YAML file to a grid of training runs, to one table of results, to the paper's tables and figures."""
