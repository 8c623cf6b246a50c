"""Consumer and share groups where their coordinator is led."""
