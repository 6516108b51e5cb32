"""One module for each command or group of commands, listed in ``app.COMMANDS``.

A module imports what takes long to load inside of the function that needs it, so that other commands start fast.
"""
