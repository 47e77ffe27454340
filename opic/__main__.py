"""`python -m opic` is the command `opic`."""

from opic.cli.__main__ import main

if __name__ == "__main__":
    main()
