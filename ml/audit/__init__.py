"""An audit of predictions against labels: every answer of two tables, and one page that can be filed."""
