"""``python -m redrafter_mlx`` is the command ``redrafter-mlx``."""

from redrafter_mlx.cli.entry import main

if __name__ == "__main__":
    main()
