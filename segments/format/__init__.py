"""On-disk formats: blocks, frames, file names, and checks of LMDB's file that LMDB does not
make."""
