"""Consumer and share groups on the server that leads their coordinator."""
