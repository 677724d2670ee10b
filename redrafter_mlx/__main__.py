"""``python -m redrafter_mlx`` is the command ``redrafter-mlx``."""

from redrafter_mlx.cli.main import main

if __name__ == "__main__":
    main()
