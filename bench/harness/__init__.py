"""What scenarios share: options, models, the systems compared, and the record and the plot of a result."""
