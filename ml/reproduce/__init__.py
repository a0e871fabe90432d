"""The paper's figures and tables, one module each, with the numbers next to the paper's."""
