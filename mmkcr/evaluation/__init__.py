"""What is measured on features and models, over a data set."""
