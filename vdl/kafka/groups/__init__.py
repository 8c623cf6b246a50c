"""Consumer and share groups where their coordinator is led; committed offsets as a topic."""
