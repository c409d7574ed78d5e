"""Forms of the gradients of all records with respect to one variable: explicit, products, rows."""
