"""The store on PostgreSQL: one database that all machines of a cluster share.

The operations and queries are those of SQLite; what differs is here.
"""

from __future__ import annotations
