import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Oubliette runs on asyncio."""
    return "asyncio"
