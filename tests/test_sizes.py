"""Numbers of bytes as a user reads them."""

from redrafter_mlx.sizes import readable_size


def test_sizes_are_read_easily() -> None:
    sizes = [0, 999, 1000, 98_400_000, 999_600_000, 13_476_000_000]
    assert [readable_size(size) for size in sizes] == [
        "0 B", "999 B", "1 kB", "98 MB", "1.0 GB", "13.5 GB",
    ]  # fmt: skip
