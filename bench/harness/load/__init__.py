"""What is asked of a server: arrivals, rows, and the clients that send them."""
