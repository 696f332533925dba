"""Right-hand sides of the training dynamics, one flow a file."""
