"""What a request must be allowed before its handler sees it: a rule for each API."""
