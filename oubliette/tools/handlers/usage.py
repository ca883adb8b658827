"""Tool that sums up what agents have used: `usage_report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.overview import UsageBy, UsageReport, UsageRow, UsageTotal
from oubliette.runtime.store import queries
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from oubliette.records import Used
    from oubliette.runtime.store.queries import UsageSum
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

_HOUR: Final = 3600


class UsageQuery(Params, frozen=True, kw_only=True):
    """Parameters of `usage_report`."""

    by: Annotated[UsageBy, Meta(description="What a row of the report is about.")] = "project"
    since: Annotated[
        Annotated[float, Meta(ge=0, le=1e11)] | None,
        Meta(
            description="Only from then on, in seconds since 1970; the hour in which it lies counts"
            " as a whole. Unset: all."
        ),
    ] = None
    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Only of this project. Unset: of all that the key reaches."),
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number of rows.")] = 100


@tool(UsageQuery, UsageReport, scope="read", read_only=True)
async def usage_report(
    services: ToolServices, context: CallContext, params: UsageQuery
) -> UsageReport:
    """Sum up tokens, costs and turns by session, project, model, agent, principal or day (UTC).

    Sessions that were removed count too, in all reports but that of sessions.
    """
    project_id = context.scope.project
    if params.project_id is not None:
        project_id = (await visible_project(services, context, params.project_id)).id
    hour = int((params.since or 0) // _HOUR)
    found = await services.reader.run(
        queries.usage_sums,
        params.by,
        hour,
        project_id,
        only=None if context.sees_principals else context.principal,
        limit=params.limit,
    )
    rows, _, cut = fitting(map(_row, found.sums))
    return UsageReport(
        by=params.by,
        since=None if params.since is None else float(hour * _HOUR),
        rows=tuple(rows),
        more=cut or found.more,
        total=_total(found.total),
    )


def _total(used: Used) -> UsageTotal:
    return UsageTotal(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        measured_cost_usd=used.measured_usd,
        reported_cost_usd=used.reported_usd,
        turns=used.turns,
    )


def _row(found: UsageSum) -> UsageRow:
    return UsageRow(
        key=found.key or None,
        name=found.name,
        input_tokens=found.used.input_tokens,
        output_tokens=found.used.output_tokens,
        measured_cost_usd=found.used.measured_usd,
        reported_cost_usd=found.used.reported_usd,
        turns=found.used.turns,
    )
