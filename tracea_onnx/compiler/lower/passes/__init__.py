"""What is decided across operators before they are lowered."""
