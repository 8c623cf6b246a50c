"""Bit flips in files at rest."""


def flip_bit(path, position, bit=0):
    """Flip one bit of the byte at `position`."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))
