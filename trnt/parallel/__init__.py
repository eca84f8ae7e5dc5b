"""How a model is laid out over devices, and what that costs."""
