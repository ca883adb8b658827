"""Mistakes that pyright finds: each line with an `expected` comment has that error, no other."""

from __future__ import annotations

import oubliette
from oubliette import sync


async def asynchronous(ob: oubliette.Oubliette, lender: sync.Caller) -> None:
    await ob.project("shop", agnet="opencode")  # expected: reportCallIssue
    project = await ob.project("shop")
    await project.spawn("Go", modle="large")  # expected: reportArgumentType
    await project.spawn("Go", on_permission=["read"])  # expected: reportArgumentType
    await project.spawn("Go", caller=lender)  # expected: reportArgumentType
    project.run("Go").text  # expected: reportAttributeAccessIssue
    async with oubliette.open(on_exit="stop") as other:  # expected: reportArgumentType
        await other.projects()


def blocking(ob: sync.Oubliette, lender: oubliette.Caller) -> None:
    project = ob.project("shop")
    project.spawn("Go", caller=lender)  # expected: reportArgumentType
    project.sumbit("Go")  # expected: reportAttributeAccessIssue
    project.run("Go", at_once=3)  # expected: reportCallIssue
