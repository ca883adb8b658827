"""Subscriptions of other actors to the log, for programs with actors of their own."""

from oubliette.actors.subscriptions.subscription import Subscription, subscribe

__all__ = ("Subscription", "subscribe")
