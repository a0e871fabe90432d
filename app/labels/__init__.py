"""Labels: leases, submission, correction window, posterior, repeats."""
