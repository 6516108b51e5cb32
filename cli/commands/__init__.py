"""One module for each command or group of commands, listed in ``app.COMMANDS``.

``app`` enters the module of the command that was called. A module parses options, calls a public function of another
part and prints what it returns: no rule of the cluster is here, and no other room imports this one. What takes long to
load is imported inside of the function that needs it, so that other commands start fast.
"""
