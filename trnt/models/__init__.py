"""Model families: one file each, with sizes, config translations and the table of names."""
