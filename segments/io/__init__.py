"""Files and threads: the only room that touches the system."""
