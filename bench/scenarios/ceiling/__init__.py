"""How near to the best possible a system comes that serves chat and rows together, in virtual time."""
