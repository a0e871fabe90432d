"""What breaks: processes killed, frozen and cut off, a database that goes away."""
