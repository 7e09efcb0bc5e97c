"""The layouts that can be read, cheap to import."""

LAYOUTS = ("clam", "dsmil", "dtfd", "transmil", "patchgcn", "setmil", "gtp", "iibmil")
