"""The views, and the named queries over them."""
