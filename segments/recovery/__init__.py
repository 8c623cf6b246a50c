"""Opening a data directory: finding its files, detecting missing ones, replaying the journal."""
