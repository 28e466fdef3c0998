"""One module per subcommand: arguments in, output out.

How a pool looks as text must not be decided here but in `render`.
"""
