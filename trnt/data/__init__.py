"""Text in, batches out: sources, the token cache, and the loader with one global order of rows."""
