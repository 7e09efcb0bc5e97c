"""`python -m smmil` is the command `smmil`."""

from smmil.cli import main

if __name__ == "__main__":
    main()
