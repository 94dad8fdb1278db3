"""The commands, one to a file: parse, call one function, hand its result to a reporter, exit."""
