"""The actor kit: asyncio actors on Pykka, with supervision (DESIGN 3.1)."""
