"""Studies: a YAML file becomes a grid of training runs, a table of results, and tables and figures."""
