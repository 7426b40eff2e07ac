"""The systems of the EconoServe, FastServe and ConServe papers, simulated, and their figures drawn again."""
