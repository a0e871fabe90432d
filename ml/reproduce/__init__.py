"""The paper's figures and tables, one module each, with the numbers beside the paper's."""
