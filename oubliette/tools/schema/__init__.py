"""Schemas of tools: types of fields, checked arguments, views of records, sizes of answers."""
