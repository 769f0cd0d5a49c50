"""`python -m branchpoint`: the command line."""

from branchpoint.cli import main

if __name__ == "__main__":
    main()
