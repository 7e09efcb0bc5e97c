"""`python -m smmil` is the command `smmil`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, which Python puts there; modules lying in it are nobody's word
    from smmil.cli import main

    main()
