"""Communication between servers about their groups."""
