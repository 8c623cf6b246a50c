"""What servers say to one another about their groups."""
