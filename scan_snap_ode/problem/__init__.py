"""What is learned: sequence classes."""
