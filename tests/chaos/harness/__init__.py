"""Real servers for tests: start them, take them away in every manner, and see what is left."""
