"""Parsing of payloads to values of Spark types: JSON, Avro and Arrow.

``payloads.py`` is the entrance (``parser_of``, ``value_ddl``). ``avro_types.py`` maps Avro types, ``json_values.py``
JSON values, ``values.py`` builds Arrow arrays. Nothing here reads ledgers or knows partitions.
"""
