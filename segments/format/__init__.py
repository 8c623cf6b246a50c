"""The bytes on disk: blocks, frames, file names, what LMDB does not check of its own."""
