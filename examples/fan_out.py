"""Many prompts at once with a tool of the program, within limits on all of them together.

    python examples/fan_out.py

A part that fails does not stop the others, and cancelling the program ends them all.
"""

import asyncio
import json

import oubliette

CHAPTERS = {1: "It was a dark night.", 2: "The night went on. It rained.", 3: "Then it was day."}


class Book:
    def __init__(self) -> None:
        self.read: set[int] = set()

    def chapter(self, number: int) -> dict:
        """Read a chapter of the book.

        Args:
            number: of the chapter, from 1.
        """
        if number not in CHAPTERS:
            raise oubliette.ToolError(f"the book has {len(CHAPTERS)} chapters")
        self.read.add(number)
        return {"text": CHAPTERS[number]}


async def main() -> None:
    book = Book()
    async with oubliette.open(temporary=True) as ob:
        project = await ob.project("library")
        prompts = [
            *(f"call program_chapter {json.dumps({'number': number})}" for number in (1, 2, 3, 4)),
            "fail the paper is too wet",
        ]
        parts = await project.map(prompts, at_once=2, tools=[book])
    for number, part in enumerate(parts, 1):
        if isinstance(part, oubliette.SessionFailed):
            print(f"{number}: failed: {part.reason}")
        elif (call := part.tool_calls[0]).is_error:
            print(f"{number}: {json.loads(part.text)['text']}")
        else:
            print(f"{number}: {len(call.result['text'].split())} words")
    print("read:", sorted(book.read))


if __name__ == "__main__":
    asyncio.run(main())
