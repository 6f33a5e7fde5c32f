"""Tools on top of the engine: they import the core and are never imported by it."""
