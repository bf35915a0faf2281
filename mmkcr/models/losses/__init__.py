"""Terms by which a dense network teaches a smaller one."""
