"""`python -m trnt`: the same as the `trnt` command (used under torchrun)."""

from trnt.cli import main

if __name__ == "__main__":
    main()
