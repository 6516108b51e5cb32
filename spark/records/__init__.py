"""Streams as tables of Spark: a row for each record.

``bounds`` what is asked for, ``planning`` and ``settling`` which entries that takes, ``rows`` from entries to records,
``batch`` and ``following`` the two ways of reading, ``sink`` and ``staging`` the way back.
"""
