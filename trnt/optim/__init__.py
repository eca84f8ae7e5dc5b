"""Optimizers: torch's own, and AdamW and Muon in the forms that torch does not have."""
