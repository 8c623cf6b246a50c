"""Commands of the command line: one small module each, loaded only when its command runs."""
