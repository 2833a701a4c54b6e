"""Tasks, metrics and the comparison of the arms."""
