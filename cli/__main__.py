"""``python -m stethoscope.cli``: the command where no script is on the path."""

from stethoscope.cli import main

if __name__ == "__main__":
    main()
