"""What a fusion saves, by a roofline model."""
