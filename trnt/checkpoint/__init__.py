"""Checkpoints: DCP folders, Hugging Face folders, and the one table that maps between their names."""
