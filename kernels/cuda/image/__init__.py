"""Pooling, resizing and sampling of channels-last images, squeeze-excite."""
