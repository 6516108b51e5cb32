"""Root package of the wheel. Zip archives need this file: Python finds no package in them without it."""
