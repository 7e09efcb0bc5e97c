"""Run before every notebook of the site: a folder of its own to write into, and smmil among the programs of %%bash.

%%bash prints what its commands said in one piece; that of IPython sends parts, which the page puts below each other.
A CUDA build of torchvision beside a CPU torch loads as well (Lightning imports it).
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec

from IPython.core.magic import register_cell_magic

from smmil.encoders.networks import _prepare_torchvision

_folder = tempfile.mkdtemp(prefix="smmil-notebook-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.chdir(_folder)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
if find_spec("torchvision"):
    _prepare_torchvision("lightning")
del find_spec, _prepare_torchvision


@register_cell_magic
def bash(_: str, cell: str) -> None:
    done = subprocess.run(["bash", "-e", "-c", cell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise RuntimeError(f"a command ended with exit code {done.returncode}")
