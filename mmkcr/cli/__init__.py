"""The command line: a frozen dataclass a command, whose fields are its arguments."""
