"""What people type: one small module per command, loaded only when its command runs."""
