"""The server as a node of a cluster: its membership, and the homes of projects."""
