"""Names that other tools give to hardware, and the entries of the catalog they mean."""
