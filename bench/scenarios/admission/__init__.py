"""Which offline rows are admitted."""
