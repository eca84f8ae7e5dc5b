"""One file per command: read the options, call one function, render its result."""
