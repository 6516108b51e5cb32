"""The package above all parts. It is a file for zip archives: Python finds no package without one there."""
