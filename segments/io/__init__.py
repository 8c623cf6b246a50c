"""Files and threads: the only folder that calls the operating system."""
