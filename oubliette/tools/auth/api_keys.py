"""ApiKeys, the registry of API keys, which creates, checks and revokes them.

All tokens are in memory, loaded from the store, so that a check needs no read and a
revocation takes effect at once; in a cluster `refresh` reads what other nodes have changed. Of a
key only its id and the SHA-256 of its secret are stored: a secret of 256 random bits needs no slow
hash.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.errors import Forbidden, NotFound, Unauthenticated
from oubliette.kit.fair_loop import working_for
from oubliette.records import Principal, Token
from oubliette.runtime.store import queries
from oubliette.runtime.store.operations import PutPrincipal, PutToken, RevokeToken
from oubliette.tools.auth import scopes
from oubliette.tools.auth.last_uses import LastUses
from oubliette.tools.auth.running_calls import REFUSED, RunningCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from oubliette.clock import Clock
    from oubliette.runtime.store.operations import Commit
    from oubliette.runtime.store.reader import Reader
    from oubliette.tools.spec import CallContext, Transport

UNBOUND: Final = "session:"
"""Principal of a minted key that is not bound to its session yet; it cannot own anything."""

_KEY: Final = re.compile(r"oub_(tok_[0-9a-hjkmnp-tv-z]{26})_([A-Za-z0-9_-]{43})")
_NO_DIGEST: Final = bytes(32)
_REVOKED_AT_ONCE: Final = 1000
"""Keys of ended sessions that one transaction revokes: the database is not held for long."""

_UNLISTED_ONE_BY_ONE: Final = 100
"""Up to so many keys that end at once are looked for in the list; more are left out in one pass."""

_log = structlog.get_logger("oubliette.keys")


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key right after its creation, the only moment at which its text is known."""

    key: str
    token: Token


def session_principal(session_id: str) -> str:
    return f"session:{session_id}"


class ApiKeys:
    """The registry of tokens. Call `load` first and `aclose` last."""

    def __init__(self, commit: Commit, reader: Reader, clock: Clock) -> None:
        self._commit = commit
        self._reader = reader
        self._clock = clock
        self._tokens: dict[str, Token] = {}
        self._of_session: dict[str, set[str]] = {}
        """Ids of the tokens that are bound to each session."""
        self._listed: list[str] = []
        """Ids of the tokens that are listed, sorted: all but revoked ones of sessions."""
        self._uses = LastUses(commit, clock)
        self._running = RunningCalls(clock)
        self.on_revoked: list[Callable[[str], None]] = []
        """Called with the id of each token that was revoked, here or on another node."""

    async def load(self) -> None:
        """Read all tokens from the store; revoke those whose session ended while no server ran."""
        self._hold({token.id: token for token in await self._reader.tokens()})
        live = await self._reader.live_session_ids()
        ended = [session_id for session_id in self._of_session if session_id not in live]
        await self._revoke_of(ended)

    async def refresh(self) -> None:
        """Read all tokens again: another node has made, bound, revoked or deleted some.

        What was changed here meanwhile stays: a token only ever becomes bound, then revoked.

        Raises:
            StorageUnavailable: the store does not answer; the tokens are as before.
        """
        before = self._tokens.copy()
        stored = {token.id: token for token in await self._reader.tokens()}
        kept = {key: token for key, token in self._tokens.items() if key not in before}
        for token_id, token in stored.items():
            if token_id in self._tokens:
                kept[token_id] = _later(self._tokens[token_id], token)
            elif token_id not in before:
                kept[token_id] = token
        self._hold(kept)
        for token_id in kept | before:
            # One that was not known here may have made something here by way of another node.
            if _valid(before.get(token_id), unknown=True) and not _valid(kept.get(token_id)):
                self._revoked(token_id)

    def _hold(self, tokens: dict[str, Token]) -> None:
        self._tokens, self._of_session = tokens, {}
        ids.begin_after(max(tokens, default=None))  # it may be of a node whose clock is ahead
        for token in tokens.values():
            if token.session_id is not None:
                self._of_session.setdefault(token.session_id, set()).add(token.id)
        self._sort()

    def _add(self, token: Token) -> None:
        known = token.id in self._tokens  # read by `refresh` meanwhile
        self._tokens[token.id] = token
        if not known and _listed(token):
            bisect.insort(self._listed, token.id)

    def _sort(self) -> None:
        self._listed = sorted(key for key, token in self._tokens.items() if _listed(token))

    def _unlist(self, token_ids: list[str]) -> None:
        """Leave out those that are not listed any more."""
        if len(token_ids) > _UNLISTED_ONE_BY_ONE:
            self._sort()
            return
        for token_id in token_ids:
            token = self._tokens.get(token_id)
            place = bisect.bisect_left(self._listed, token_id)
            if self._listed[place : place + 1] == [token_id] and not (token and _listed(token)):
                del self._listed[place]

    async def aclose(self) -> None:
        await self._uses.aclose()

    # ------------------------------------------------------------------ checks

    def verify(self, key: str, transport: Transport, session_id: str | None = None) -> Token:
        """The token of `key`, if it is valid on this transport and this session's link.

        What the current task does from then on, it does in the turn of the key's principal. On an
        agent's link it remains work for who has started the tree: its sessions have principals of
        their own, each of which would have a part.

        Raises:
            Unauthenticated: unknown, wrong, revoked, expired, of another transport or session.
        """
        found = self.recognise(key)
        if not self._good(found, transport, session_id):
            raise Unauthenticated(REFUSED)
        self._uses.touch(found.id)
        if transport != "socket":
            working_for.set(found.principal)
        return found

    def recognise(self, key: str) -> Token:
        """Return the token with the secret of `key`, valid or not; only for checks of it.

        Raises:
            Unauthenticated: there is none.
        """
        match = _KEY.fullmatch(key)
        token = self._tokens.get(match[1]) if match else None
        digest = hashlib.sha256((match[2] if match else "").encode()).digest()
        # Compared in any case: the time must not reveal whether the id exists.
        same = hmac.compare_digest(digest, token.digest if token else _NO_DIGEST)
        if token is None or not same:
            raise Unauthenticated(REFUSED)
        return token

    async def look_up(self, key: str) -> bool:
        """Read the token of a key that is unknown here, as another node may have just made it.

        Returns:
            Whether the token is known now, and was not before.

        Raises:
            StorageUnavailable: the store does not answer.
        """
        match = _KEY.fullmatch(key)
        if match is None or match[1] in self._tokens:
            return False
        token = await self._reader.run(queries.token, match[1])
        if token is None:
            return False
        if token.id not in self._tokens:
            self._add(token)
        if token.session_id is not None:
            self._of_session.setdefault(token.session_id, set()).add(token.id)
        return True

    def known(self, key: str) -> Token | None:
        """Return `recognise`, or None if the key is unknown."""
        try:
            return self.recognise(key)
        except Unauthenticated:
            return None

    async def id_of(self, key: str) -> str | None:
        """Return the id of the token of a key, valid or not; None: it is none of this server.

        Raises:
            StorageUnavailable: it may be of another node, and the store does not answer.
        """
        await self.look_up(key)
        found = self.known(key)
        return None if found is None else found.id

    def has_ended(self, token_id: str) -> bool:
        """Whether a key was revoked or has expired."""
        token = self._tokens.get(token_id)
        if token is None:
            return False
        expired = token.expires_at is not None and token.expires_at <= self._clock.time()
        return expired or token.revoked_at is not None

    def while_good(self, token_id: str) -> AbstractAsyncContextManager[None]:
        """The context of what a key does, which is cancelled when the key ends.

        Those that have no key, such as the operator, do it without a limit.

        Raises:
            Unauthenticated: the key has ended, before or meanwhile.
        """
        if self.has_ended(token_id):
            raise Unauthenticated(REFUSED)
        token = self._tokens.get(token_id)
        ends = None if token is None else token.expires_at
        left = None if ends is None else ends - self._clock.time()
        return self._running.until_end(token_id, left)

    def _good(self, token: Token, transport: Transport, session_id: str | None) -> bool:
        if self.has_ended(token.id) or token.principal == UNBOUND:
            return False
        if transport not in token.transports:
            return False
        return transport != "socket" or token.session_id is None or token.session_id == session_id

    async def verify_on_link(self, key: str, session_id: str) -> Token:
        """Verify a key on a session's link; bind it if it was minted for this session.

        The session's record names the key that was minted for it, and is in the log before its
        agent starts: so the first use may come before the spawn has returned.

        Raises:
            Unauthenticated: the key is not valid here.
        """
        found = self.recognise(key)
        if found.principal == UNBOUND and found.revoked_at is None:
            record = await self._reader.session(session_id)
            if record is not None and record.minted_token_id == found.id:
                await self.bind(found.id, session_id)
        return self.verify(key, "socket", session_id)

    async def scope_of(self, token_id: str) -> scopes.Scope | None:
        """Return the scope of a key that is still good for something; None: it is not."""
        token = self._tokens.get(token_id) or await self._reader.run(queries.token, token_id)
        if token is None or token.revoked_at is not None:
            return None
        if token.expires_at is not None and token.expires_at <= self._clock.time():
            return None
        return scopes.parse(token.scope)

    # ------------------------------------------------------------------ changes

    async def create(
        self,
        *,
        name: str,
        scope: scopes.Scope,
        principal: str | None = None,
        expires_in: float | None = None,
        users: tuple[str, ...] = (),
    ) -> NewKey:
        """Create a key. Without `principal` a new one is made for it; so is one of a new name."""
        now = self._clock.time()
        owner = principal if principal is not None else ids.new_id(ids.PRINCIPAL)
        new = self._make(
            name=name,
            scope=scope,
            principal=owner,
            expires_at=None if expires_in is None else now + expires_in,
            users=users,
        )
        ops: list[PutPrincipal | PutToken] = []
        if principal is None or await self._reader.principal(owner) is None:
            ops.append(PutPrincipal(Principal(id=owner, name=principal or name, created_at=now)))
        ops.append(PutToken(new.token))
        await self._commit(tuple(ops))
        self._add(new.token)
        _log.info("token created", token_id=new.token.id, scope=new.token.scope, principal=owner)
        return new

    async def mint(
        self, creator: CallContext, scope: scopes.Scope, ttl_seconds: float | None = None
    ) -> NewKey:
        """Create a key for an agent's environment; `bind` it once its session is known.

        It is valid on its session's link only, and expires no later than its creator's key.

        Raises:
            Forbidden: its scope exceeds its creator's.
        """
        if not scopes.narrower_or_equal(scope, creator.scope):
            raise Forbidden(
                f"api_key_scope: {scope} reaches further than your own key ({creator.scope})",
                hint="ask for a narrower scope",
            )
        ends = [at for at in (creator.expires_at,) if at is not None]
        if ttl_seconds is not None:
            ends.append(self._clock.time() + ttl_seconds)
        new = self._make(
            name="session key",
            scope=scope,
            principal=UNBOUND,
            expires_at=min(ends, default=None),
            transports=("socket",),
        )
        await self._commit((PutToken(new.token),))
        self._add(new.token)
        return new

    async def bind(self, token_id: str, session_id: str) -> None:
        """Bind a minted key to its session; a binding never changes."""
        token = self._tokens.get(token_id)
        if token is None or token.principal != UNBOUND:
            return
        principal = session_principal(session_id)
        bound = msgspec.structs.replace(token, principal=principal, session_id=session_id)
        self._tokens[token_id] = bound
        self._of_session.setdefault(session_id, set()).add(token_id)
        now = self._clock.time()
        ops: list[PutPrincipal | PutToken] = []
        if await self._reader.principal(principal) is None:
            ops.append(PutPrincipal(Principal(id=principal, name=principal, created_at=now)))
        current = self._tokens[token_id]
        await self._commit((*ops, PutToken(current)))

    async def revoke(self, token_id: str) -> bool:
        """Revoke a key at once; return False if it was revoked before.

        Raises:
            NotFound: there is no such token.
        """
        token = self._tokens.get(token_id)
        if token is None:
            raise NotFound(f"token {token_id} not found", hint="token_list shows the tokens")
        now = self._clock.time()
        if token.revoked_at is None:
            # In memory first, and kept even if the write fails: a check between here and the commit
            # must not accept the key. Revoking again writes again.
            self._tokens[token_id] = msgspec.structs.replace(token, revoked_at=now)
            self._unlist([token_id])
            self._revoked(token_id)
        (revoked,) = await self._commit((RevokeToken(token_id, now),))
        _log.info("token revoked", token_id=token_id)
        return bool(revoked)

    def _revoked(self, token_id: str) -> None:
        self._running.end(token_id)
        for told in self.on_revoked:
            try:
                told(token_id)
            except Exception:
                # Such as a full mailbox: the revocation is stored all the same.
                _log.exception("a part was not told of a revoked key", token_id=token_id)

    async def discard(self, token_id: str) -> None:
        if token_id in self._tokens:
            await self.revoke(token_id)

    async def end_session(self, session_id: str) -> None:
        await self._revoke_of([session_id])

    async def _revoke_of(self, session_ids: list[str]) -> None:
        now = self._clock.time()
        bound = (key for session_id in session_ids for key in self.of_session(session_id))
        ended = [key for key in bound if self._tokens[key].revoked_at is None]
        for token_id in ended:
            token = self._tokens[token_id]
            self._tokens[token_id] = msgspec.structs.replace(token, revoked_at=now)
            self._revoked(token_id)
        self._unlist(ended)
        for start in range(0, len(ended), _REVOKED_AT_ONCE):
            some = ended[start : start + _REVOKED_AT_ONCE]
            await self._commit(tuple(RevokeToken(token_id, now) for token_id in some))

    def listed_after(self, after: str | None) -> Iterator[Token]:
        """Yield the tokens behind the id `after`, oldest first, with their last use if it is known.

        Those of sessions end with their revocation; others are kept, and listed as revoked.
        """
        start = 0 if after is None else bisect.bisect_right(self._listed, after)
        for place in range(start, len(self._listed)):
            token_id = self._listed[place]
            token, used = self._tokens[token_id], self._uses.of(token_id)
            if used is not None:
                used = max(token.last_used_at or 0.0, used)
                token = msgspec.structs.replace(token, last_used_at=used)
            yield token

    def forget(self, token_id: str) -> None:
        """Forget a token whose record was purged with its session."""
        token = self._tokens.pop(token_id, None)
        self._unlist([token_id])
        if token is not None and token.session_id is not None:
            of_session = self._of_session[token.session_id]
            of_session.discard(token_id)
            if not of_session:
                del self._of_session[token.session_id]
        self._uses.forget(token_id)

    def of_session(self, session_id: str) -> list[str]:
        return sorted(self._of_session.get(session_id, ()))

    def _make(
        self,
        *,
        name: str,
        scope: scopes.Scope,
        principal: str,
        expires_at: float | None,
        transports: tuple[str, ...] = ("http", "socket"),
        users: tuple[str, ...] = (),
    ) -> NewKey:
        secret = secrets.token_urlsafe(32)
        token = Token(
            id=ids.new_id(ids.TOKEN),
            digest=hashlib.sha256(secret.encode()).digest(),
            name=name,
            scope=str(scope),
            principal=principal,
            created_at=self._clock.time(),
            expires_at=expires_at,
            transports=transports,
            users=users,
        )
        return NewKey(key=f"oub_{token.id}_{secret}", token=token)


def _listed(token: Token) -> bool:
    return token.revoked_at is None or "http" in token.transports


def _valid(token: Token | None, *, unknown: bool = False) -> bool:
    return unknown if token is None else token.revoked_at is None


def _later(mine: Token, stored: Token) -> Token:
    """The later state of one token: what is in memory may not be stored yet."""
    if mine.revoked_at is not None and stored.revoked_at is None:
        return mine
    if mine.principal != UNBOUND and stored.principal == UNBOUND:
        return msgspec.structs.replace(mine, revoked_at=stored.revoked_at)
    return stored
