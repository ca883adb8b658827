"""An answer as a value of a type, and what happens when the agent gets it wrong.

    python examples/typed_result.py

The agent is given the JSON Schema of `Review`. Its answer is validated; one that is wrong is
returned to it with the place of the error, so that it can correct it.
"""

import asyncio
from enum import Enum
from typing import Annotated

import msgspec

import oubliette


class Severity(Enum):
    LOW = "low"
    HIGH = "high"


class Finding(msgspec.Struct):
    file: str
    line: Annotated[int, msgspec.Meta(ge=1)]
    severity: Severity


class Review(msgspec.Struct):
    summary: str
    findings: list[Finding]


GOOD = 'say {"summary": "one bug", "findings": [{"file": "a.py", "line": 7, "severity": "high"}]}'
BAD = GOOD.replace('"line": 7', '"line": 0')


async def main() -> None:
    async with oubliette.open(temporary=True) as ob:
        project = await ob.project("review")
        review = await project.run(GOOD, returns=Review)
        for finding in review.findings:
            print(f"{finding.file}:{finding.line}: {finding.severity.value}")

        try:  # an agent with a model corrects itself; the scripted one cannot
            await project.run(BAD, returns=Review, attempts=1)
        except oubliette.ResultInvalid as error:
            print("wrong:", error.reason)


if __name__ == "__main__":
    asyncio.run(main())
