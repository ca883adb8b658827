"""Proxies and certificates that the environment names, for a connection to one address."""

from __future__ import annotations

import ipaddress
import os
import ssl
from typing import TYPE_CHECKING, Any
from urllib.request import proxy_bypass

import anyio
import anyio.to_thread

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    import httpx2


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, which no proxy stands before."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        found = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return mapped.is_loopback or mapped.is_unspecified


def proxy_variable(url: httpx2.URL) -> str | None:
    """Return the variable that names the proxy for this address; None: it is reached directly."""
    if is_loopback(url.host) or proxy_bypass(url.host):
        return None
    names = (f"{url.scheme}_proxy", "all_proxy")
    both = (each for name in names for each in (name, name.upper()))
    return next((each for each in both if os.environ.get(each)), None)


def by_proxy(url: httpx2.URL) -> str:
    """Return words for errors about the proxy on the way, which may be their cause; or none."""
    variable = proxy_variable(url)
    return "" if variable is None else f" (by way of the proxy in {variable})"


async def http_client(url: httpx2.URL, **options: Any) -> httpx2.AsyncClient:
    """Return an HTTP client for one address.

    The library would also use a proxy for this machine, and would fail for a proxy that it cannot
    use though none is needed.

    Raises:
        ConfigError: the proxy, or the file with certificates, cannot be used; names the variable.
    """
    import httpx2

    # Reading the system's certificates takes long, and is in vain without TLS.
    verify = await _certificates() if url.scheme == "https" else _NO_CERTIFICATES
    variable = proxy_variable(url)
    proxy = os.environ[variable] if variable is not None else None
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        return httpx2.AsyncClient(verify=verify, proxy=proxy, trust_env=False, **options)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        # The library's words may quote a part of the address, which may have a password in it.
        why = "a package for it is missing" if isinstance(error, ImportError) else "it is no URL"
        raise ConfigError(
            f"{variable}: its proxy cannot be used: {why}",
            hint=f"add {url.host} to NO_PROXY, or name a proxy with http:// in {variable}",
        ) from None


_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _certificates() -> ssl.SSLContext:
    import httpx2

    try:
        return await anyio.to_thread.run_sync(httpx2.create_ssl_context)
    except OSError as error:  # of a missing file, or of ssl
        named = [each for each in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(each)]
        raise ConfigError(
            f"{' and '.join(named) or 'the system'}: the certificates cannot be read:"
            f" {error.strerror or error}",
            hint="a file of certificates in the format PEM, or a folder that c_rehash has prepared",
        ) from error
