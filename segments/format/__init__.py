"""On-disk formats: blocks, frames, file names; and checks of LMDB's file."""
