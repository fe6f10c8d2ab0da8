"""``python -m raftlog`` is the ``raftlog`` command."""

from cli.main import main

if __name__ == "__main__":
    main()
