"""Topics, groups and settings of a cluster: facts, plans and changes."""
